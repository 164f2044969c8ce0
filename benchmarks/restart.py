"""A run whose Kimina server is restarted again and again equals one that was left alone: about 2 minutes.

    python benchmarks/restart.py [--steps 6] [--restarts 4]

The golden run, judged by the tests' real Kimina server over the embedded Lean.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.golden.golden import golden_command, read_metrics
from tests.kimina_stack import make_environment, serving

DOWN_S = 4.0  # how long the server is away


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
            file = work / "cut" / "metrics.jsonl"
            written = file.read_bytes().count(b"\n") if file.exists() else 0
            if written > seen and restarts < options.restarts:
                seen, restarts = written, restarts + 1
                server.stop()
                time.sleep(DOWN_S)
                server.start()
                print(f"restart {restarts}, after {written} lines of metrics", flush=True)
            time.sleep(0.05)
        assert run.returncode == 0
        whole, cut = read_metrics(work / "whole"), read_metrics(work / "cut")
        equal = sum(one == other for one, other in zip(whole, cut, strict=True))
        print(f"{restarts} restarts: {equal} of {len(whole)} lines of metrics equal")


if __name__ == "__main__":
    main()
