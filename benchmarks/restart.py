"""A run whose Kimina server is restarted again and again equals one that was left alone: about 2 minutes.

    python benchmarks/restart.py [--steps 6] [--restarts 4]

The golden run, judged by the tests' real Kimina server over the embedded Lean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.golden.golden import golden_command
from tests.kimina_stack import make_environment, serving

DOWN_S = 4.0  # how long the server is away


def metrics(folder: Path) -> list[dict[str, float]]:
    """The run's lines so far, wall times aside."""
    file = folder / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("seconds/")} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--restarts", type=int, default=4)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        serving(make_environment(), Path(temporary) / "server", repls=1) as server,
    ):
        work = Path(temporary)

        def start(name: str) -> subprocess.Popen[bytes]:
            lean = {"lean__backend": "kimina", "lean__servers": f"[{server.url}]", "lean__server_slots": 1}
            settings = lean | {"lean__retry_s": 1.0, "run__steps": options.steps}
            command = golden_command("drgrpo_tiny", work / name, 1, **settings)
            return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})

        assert start("whole").wait() == 0
        run, seen, restarts = start("cut"), 0, 0
        while run.poll() is None:
            written = len(metrics(work / "cut"))
            if written > seen and restarts < options.restarts:
                seen, restarts = written, restarts + 1
                server.stop()
                time.sleep(DOWN_S)
                server.start()
                print(f"restart {restarts}, after {written} lines of metrics", flush=True)
            time.sleep(0.05)
        assert run.returncode == 0
        whole, cut = metrics(work / "whole"), metrics(work / "cut")
        equal = sum(one == other for one, other in zip(whole, cut, strict=True))
        print(f"{restarts} restarts: {equal} of {len(whole)} lines of metrics equal")


if __name__ == "__main__":
    main()
