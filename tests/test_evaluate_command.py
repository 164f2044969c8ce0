"""prover-eval: the same numbers as in a run, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"


def _evaluate(folder: Path, *overrides: str) -> str:
    command = [sys.executable, "-m", "commands.evaluate", "--config"]
    command += [str(ROOT / "experiments" / "drgrpo_tiny" / "config.yaml"), f"run.folder={folder}"]
    command += [f"policy.path={GOLDEN / 'policy'}", f"data.heldout={GOLDEN / 'heldout.jsonl'}", *overrides]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_an_evaluation_prints_its_numbers_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    greedy = ("evaluate.temperature=0", "evaluate.samples=1", "evaluate.problems=4")
    first, second = (_evaluate(folder, *greedy) for _ in range(2))
    assert "evaluate/pass@1" in first
    assert first == second, "greedy decoding has one answer"
    assert not folder.exists()
