"""Runs an experiment as the golden run and reads its numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

GOLDEN = Path(__file__).parent
EXPERIMENTS = GOLDEN.parents[1] / "experiments"


def golden_command(experiment: str, folder: Path, processes: int = 1, **overrides: object) -> list[str]:
    """The command of `experiment` with the golden overrides, and `section__key=value` on top."""
    text = (GOLDEN / "overrides.yaml").read_text(encoding="utf-8").replace("{golden}", str(GOLDEN))
    values = yaml.safe_load(text) | {key.replace("__", "."): value for key, value in overrides.items()}
    values["run.folder"] = folder
    arguments = [f"{key}={'null' if value is None else value}" for key, value in values.items()]
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*command, str(EXPERIMENTS / experiment / "train.py"), *arguments]


def run_golden(
    experiment: str, folder: Path, processes: int = 1, **overrides: object
) -> list[dict[str, float]]:
    """Run `experiment` with the golden overrides, and `section__key=value` on top; its metrics by line."""
    command = golden_command(experiment, folder, processes, **overrides)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return read_metrics(folder)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """A run's metrics by line, without wall times."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [_without_clock(json.loads(line)) for line in lines]


def _without_clock(record: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in record.items() if not key.startswith("seconds/")}
