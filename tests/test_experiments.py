"""Every experiment's loop, whole and real: the golden run, dry runs, and independence of cuts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.golden.golden import EXPERIMENTS, GOLDEN, run_golden

FOLDERS = sorted(path.parent.name for path in EXPERIMENTS.glob("*/train.py"))


@pytest.fixture(scope="module")
def golden_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]]]:
    folder = tmp_path_factory.mktemp("golden") / "run"
    return folder, run_golden("drgrpo_tiny", folder)


def _same(found: list[dict[str, float]], expected: list[dict[str, float]], tolerance: float) -> None:
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        assert line.keys() == wanted.keys()
        for name, value in wanted.items():
            close = math.isclose(line[name], value, rel_tol=tolerance, abs_tol=tolerance)
            both_nan = math.isnan(line[name]) and math.isnan(value)
            assert close or both_nan, f"step {wanted['step']}, {name}: {line[name]} was {value}; see {GOLDEN}"


def test_the_recorded_golden_run(golden_run: tuple[Path, list[dict[str, float]]]) -> None:
    """Recorded on another day and machine: library updates may move the last digits, nothing else may."""
    _same(golden_run[1], json.loads((GOLDEN / "metrics.json").read_text()), tolerance=1e-6)


def test_the_golden_run_exercises_the_loop(golden_run: tuple[Path, list[dict[str, float]]]) -> None:
    folder, metrics = golden_run
    steps = [line for line in metrics if "reward/mean" in line]
    assert len(steps) == 3
    assert any(0 < line["reward/mean"] < 1 for line in steps)
    assert any(line["update/count"] == 2 for line in steps), "an off-policy update is in it"
    assert any(line.get("policy/ratio/max", 1.0) > 1 for line in steps)
    assert any("reward/mean/turn_1" in line for line in steps), "error-fix prompts are in it"
    assert all(line["rollout/logprob_gap/max"] < 1e-9 for line in steps if line["update/count"] == 1)
    rows = pd.read_parquet(folder / "rollouts" / "step_00001.parquet")
    assert len(rows) == 16
    assert (rows["completion_tokens"] > 0).all()
    for name in ("config.yaml", "git.diff", "run.json", "curves.png", "outcomes.jsonl"):
        assert (folder / name).is_file(), name
    assert (folder / "policies" / "step_00003" / "model.safetensors").is_file()


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "drgrpo_tiny"])
def test_every_experiment_reproduces_the_golden_run(
    folder: str, golden_run: tuple[Path, list[dict[str, float]]], tmp_path: Path
) -> None:
    _same(run_golden(folder, tmp_path / "run"), golden_run[1], tolerance=1e-12)


@pytest.mark.parametrize(
    ("processes", "tokens_per_microbatch"),
    [(1, 4000), (2, 700), (2, 1600)],
    ids=["large", "two", "two-large"],
)
def test_numbers_do_not_depend_on_processes_or_micro_batches(
    processes: int,
    tokens_per_microbatch: int,
    golden_run: tuple[Path, list[dict[str, float]]],
    tmp_path: Path,
) -> None:
    overrides = {"loss__tokens_per_microbatch": tokens_per_microbatch}
    found = run_golden("drgrpo_tiny", tmp_path / "run", processes, **overrides)
    _same(found, golden_run[1], tolerance=1e-9)


def test_an_ablation_changes_the_golden_run(
    golden_run: tuple[Path, list[dict[str, float]]], tmp_path: Path
) -> None:
    overrides = {"ablation__loss": "grpo", "ablation__advantage": "standardised", "run__steps": 2}
    found = run_golden("drgrpo_0p6b", tmp_path / "run", **overrides)
    first, expected = (
        next(line for line in lines if "reward/mean" in line) for lines in (found, golden_run[1])
    )
    assert first["reward/mean"] == expected["reward/mean"], "the first step samples from the same policy"
    assert first["loss/policy/sum"] != expected["loss/policy/sum"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_dry_run_says_what_a_real_run_needs(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXPERIMENTS / folder / "train.py"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    for words in (
        "rollouts a step",
        "updates a step",
        "accumulation",
        "tokens a step",
        "prompts_per_update:",
    ):
        assert words in done.stdout, words
    assert "Lean: embedded, canaries pass" in done.stdout
    if folder != "drgrpo_tiny":
        assert "memory a rank" in done.stdout
        assert (
            f"MISSING  model: policy.path AI-MO/Kimina-Prover-Distill-{folder[-4:].replace('p', '.').upper()}"
            in (done.stdout)
        )
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"
