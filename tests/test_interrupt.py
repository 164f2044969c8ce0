"""Ctrl-C in the middle of a rollout phase ends the run and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

GOLDEN = Path(__file__).parent / "golden"
TRAIN = GOLDEN.parents[1] / "experiments" / "drgrpo_tiny" / "train.py"


def test_an_interrupted_rollout_phase_leaves_no_process(tmp_path: Path) -> None:
    text = (GOLDEN / "overrides.yaml").read_text(encoding="utf-8").replace("{golden}", str(GOLDEN))
    values = yaml.safe_load(text) | {
        "run.folder": tmp_path / "run",
        "evaluate.problems": 1,
        "rollout.group_size": 400,  # a rollout phase that lasts until it is interrupted
        "rollout.max_rows": 16,
    }
    arguments = [f"{key}={'null' if value is None else value}" for key, value in values.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=hear_interrupts,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        # step 0's evaluation is written and Lean's process has a child: step 1's rollouts are being checked
        while not (metrics.exists() and metrics.read_text().count("\n") and grandchildren(run.pid)):
            assert run.poll() is None, run.communicate()[0][-2000:]
            time.sleep(0.005)
        processes = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=250)
    finally:
        run.kill()
    assert "KeyboardInterrupt" in output
    assert run.returncode not in (0, None)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert metrics.read_text().count("\n") == 1  # nothing was written of the step that did not end


def hear_interrupts() -> None:
    """What a background job starts ignores SIGINT, and so would what these tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def grandchildren(pid: int) -> list[psutil.Process]:
    try:
        return [p for child in psutil.Process(pid).children() for p in child.children()]
    except psutil.NoSuchProcess:
        return []
