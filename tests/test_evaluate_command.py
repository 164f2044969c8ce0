"""prover-eval and prover-compare: the same numbers as in a run, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"


def _evaluate(folder: Path, *overrides: str) -> str:
    return _command("evaluate", folder, f"policy.path={GOLDEN / 'policy'}", *overrides)


def _command(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", f"commands.{name}", *arguments]
    command += ["--config", str(ROOT / "experiments" / "drgrpo_tiny" / "config.yaml")]
    command += [f"run.folder={folder}", f"data.heldout={GOLDEN / 'heldout.jsonl'}"]
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


def test_two_policies_are_compared_on_the_same_random_streams(tmp_path: Path) -> None:
    folder, policy = tmp_path / "run", str(GOLDEN / "policy")
    few = ("evaluate.samples=4", "evaluate.problems=4", "evaluate.error_fix=false")
    lines = _command("compare", folder, policy, policy, *few).splitlines()
    assert "4 of 4 problems with 4 judged samples each (mean ± s.e.)" in lines
    table = {line.split()[0]: line for line in lines if line.startswith("pass@")}
    assert list(table) == ["pass@1", "pass@2", "pass@4"]
    assert all(line.endswith("+0.0 ± 0.0  p = 1") for line in table.values()), table
    alone = next(line for line in _evaluate(folder, *few).splitlines() if line.startswith("evaluate/pass@1 "))
    assert f"{100 * float(alone.split()[1]):.1f}" == table["pass@1"].split()[1]
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments",
    [["runs/a", "--config", "runs/a.yaml"], ["runs/a", "run.seed=1"], ["--config", "c", "runs/a"]],
)
def test_compare_says_which_policy_is_missing(arguments: list[str]) -> None:
    """It used to take an option's value or an override for the second policy."""
    command = [sys.executable, "-m", "commands.compare", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "AFTER" in done.stderr.splitlines()[-1], done.stderr
