"""Shows what the embedded Lean says about a file of theorems: python -m commands.lean_check FILE."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from core.lean.library import WORKER_FILE, locate_library


def main() -> int:
    library = locate_library()
    code = Path(sys.argv[1]).read_text()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file.lean"
        file.write_text("prelude import Prelude " + code)
        run = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                str(WORKER_FILE),
                "run",
                str(library.shared),
                "-Dlinter.all=false",
                "-DautoImplicit=false",
                str(file),
            ],
            env={"LEAN_PATH": str(library.compiled)},
            cwd=folder,
            timeout=60,
        )
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
