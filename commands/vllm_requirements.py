"""Prints what an installed vLLM needs, less the packages named: for `make setup-vllm-cpu` and `setup-gpu`.

pip cannot leave a dependency out, and vLLM 0.32 asks for an older transformers than this project (it runs
with ours) and, on a CPU, for torchvision, torchaudio and torchcodec, which break the import of transformers'
models.
"""

from __future__ import annotations

import argparse
import importlib.metadata

from packaging.requirements import Requirement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("package", help="vllm or vllm-cpu, installed without its dependencies")
    parser.add_argument("--without", nargs="*", default=[], help="names of packages to leave out")
    arguments = parser.parse_args()
    for line in importlib.metadata.requires(arguments.package) or []:
        needed = Requirement(line)
        wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if wanted and needed.name not in arguments.without:
            needed.marker = None
            print(needed)


if __name__ == "__main__":
    main()
