"""Runs that are killed, asked to stop, damaged, or lose a rank, and what the same command makes of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.survival import SMALL, STARTED, LiveRun, check, kills, whole_run
from tests.golden.golden import golden_command, read_metrics

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: dict[str, Any] = SMALL | {"run__steps": 3, "evaluate__every": 2}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("alone") / "reference", **SETTINGS)


def test_three_kills_change_nothing(left_alone: Path) -> None:
    """In generation, verification and backward; benchmarks/survival.py kills more often, and in more ways."""
    assert sum(kills(left_alone.parent, count=3, steps=3, evaluate__every=2).values()) == 3


def test_sigterm_saves_and_exits_0(left_alone: Path, tmp_path: Path) -> None:
    """In the first evaluation, where nothing is saved yet, and in the middle of a step."""
    folder = tmp_path / "run"
    for asked_at, stopped_at in ((r"Lean: embedded", 0), (r"resumed after step 0", 1)):
        run = LiveRun(folder, **SETTINGS)
        assert run.wait_for(asked_at)
        run.send(signal.SIGTERM)
        run.end()
        assert run.said("stopped as asked")
        newest = max(path.name for path in (folder / "checkpoints").iterdir())
        assert newest == f"step_{stopped_at:05d}"
    run = LiveRun(folder, **SETTINGS)
    run.end()
    assert run.said("resumed after step 1")
    check(folder, left_alone)


def test_a_step_that_outlasts_the_grace_is_abandoned(left_alone: Path, tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run", **SETTINGS, run__grace_s=0.01)
    assert run.wait_for(STARTED)
    run.send(signal.SIGTERM)
    run.end()
    assert run.said("abandoned")
    check(whole_run(tmp_path / "run", **SETTINGS), left_alone)


def test_a_finished_run_says_so_and_another_config_is_refused(left_alone: Path) -> None:
    before = (left_alone / "metrics.jsonl").read_bytes()
    for settings, words in (
        (SETTINGS, "holds this run, finished"),
        (SETTINGS | {"optimiser__learning_rate": 1.0}, "another config.*optimiser.learning_rate"),
        (SETTINGS | {"run__on_existing": "refuse"}, "the same config"),
    ):
        run = LiveRun(left_alone, logs=left_alone.parent, **settings)
        run.ranks[0].join()
        assert run.ranks[0].exitcode == 2
        assert run.said(f"error: .*{words}"), run.log.read_text()
    assert (left_alone / "metrics.jsonl").read_bytes() == before


def test_more_steps_go_on_if_told_so(left_alone: Path, tmp_path: Path) -> None:
    """A run of 2 steps, finished, taken up as one of 3: the numbers of one that was 3 from the beginning."""
    folder = whole_run(tmp_path / "run", **SETTINGS | {"run__steps": 2, "evaluate__quick_problems": 2})
    LiveRun(folder, **SETTINGS, run__on_existing="resume_changed").end()
    assert json.loads((folder / "run.json").read_text())["resumed"][0]["changed"] == "run.steps: 2 → 3"
    assert list(map(json.dumps, read_metrics(folder))) == list(map(json.dumps, read_metrics(left_alone)))


def test_two_processes_go_on_as_two_and_as_one(left_alone: Path, tmp_path: Path) -> None:
    """Saved on 2, resumed on 2: equal bit by bit. Saved on 1, resumed on 2: as near as 1 and 2 ever are."""
    reference = tmp_path / "reference"
    LiveRun(reference, processes=2, **SETTINGS).end()
    for name, first in (("two", 2), ("one", 1)):
        run = LiveRun(tmp_path / name, processes=first, **SETTINGS)
        assert run.wait_for(r"step +1 \|")
        run.send(signal.SIGTERM)
        run.end()
        LiveRun(tmp_path / name, processes=2, **SETTINGS).end()
    check(tmp_path / "two", reference)
    found, expected = read_metrics(tmp_path / "one"), read_metrics(left_alone)
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        assert line == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True)


def _torchrun(folder: Path, *options: str, **overrides: Any) -> subprocess.Popen[str]:
    command = golden_command("drgrpo_tiny", folder, 2, **SETTINGS | overrides)
    script = next(at for at, word in enumerate(command) if word.endswith("train.py"))
    return subprocess.Popen(
        [*command[:script], *options, *command[script:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _ranks(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The rank processes under torchrun, in order."""
    children = [child for child in psutil.Process(agent.pid).children() if "train.py" in str(child.cmdline())]
    return sorted(children, key=lambda child: int(child.environ()["RANK"]))


def _read_until(agent: subprocess.Popen[str], pattern: str) -> str:
    assert agent.stdout is not None
    text = ""
    for line in agent.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"the run ended without {pattern!r}:\n{text[-3000:]}")


def test_torchrun_restarts_resume_by_themselves(left_alone: Path, tmp_path: Path) -> None:
    agent = _torchrun(tmp_path / "run", "--max-restarts=1")
    _read_until(agent, r"step +1 \|")
    _ranks(agent)[1].kill()
    assert agent.stdout is not None
    output = agent.stdout.read()
    assert agent.wait() == 0, output[-3000:]
    assert "resumed after step" in output
    found, expected = read_metrics(tmp_path / "run"), read_metrics(left_alone)
    for line, wanted in zip(found, expected, strict=True):
        assert line == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True)


RANK = """
import os, signal, sys, time
from pathlib import Path
from core.config import Config, load_config
from core.run import Run
overrides = ["run.wandb=disabled", "run.timeout_minutes=0.25"]
with Run(load_config(Config, Path(sys.argv[1]), overrides), "test") as run:
    run.barrier()
    with run.phase("rollout"):
        if run.rank == 1:
            time.sleep(6)  # long enough to have said where it is
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        run.gather([run.rank])
"""


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_a_rank_that_hangs_or_dies_ends_the_job_by_name(number: str) -> None:
    """Within 15 s, as configured, and a few beats of 2 s."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    place |= os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANK, str(ROOT / "experiments" / "drgrpo_tiny" / "config.yaml"), number]
    ranks = [
        subprocess.Popen(command, env=place | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = ranks[0].communicate(timeout=250)[1]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[0].returncode == 1, errors
    if number == "SIGSTOP":
        assert re.search(r"nothing has moved on rank 0 for 1\d s", errors), errors
        assert "waiting for other ranks" in errors
    else:
        assert "rank 0 failed in rollout" in errors
    assert re.search(r"rank 1: \d+ phase rollout", errors), errors
