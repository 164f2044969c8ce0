"""Guards: what trips them, how long it takes, and what they do."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from core.config import Config, GuardConfig, load_config
from core.errors import UserError
from core.guards import Guards
from core.run import Run

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"
HEALTHY = {
    "reward/mean": 0.5,
    "reward/censored": 0.0,
    "reward/useful": 0.4,
    "rollout/length/mean": 60.0,
    "rollout/logprob_gap/mean": 1e-6,
    "format/errors": 0.2,
    "update/grad_norm": 0.01,
}
# 32 prompts × 8 rollouts: 26 of 256 without a verdict are just above a tenth.
SICK = {
    "grad_norm": {"update/grad_norm": 1.5},
    "useful": {"reward/useful": 0.0},
    "length": {"rollout/length/mean": 2.0},
    "malformed": {"format/errors": 0.99},
    "unknown": {"reward/censored": 26.0},
    "logprob_gap": {"rollout/logprob_gap/mean": 0.01},
}


def guarded(folder: Path, **guards: GuardConfig) -> tuple[Run, Guards]:
    config = load_config(Config, TINY, [f"run.folder={folder / 'run'}", "run.wandb=disabled"])
    config = dataclasses.replace(config, guards=dataclasses.replace(config.guards, **guards))
    run = Run(config, "test")
    return run, Guards(config, run)


def warned(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Names of the guards that warned since the last call."""
    words = capsys.readouterr().out.split()
    return [words[at + 1].rstrip(",") for at, word in enumerate(words) if word == "guard"]


@pytest.mark.parametrize("name", SICK)
def test_each_guard_trips_on_its_own_number(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {guard: GuardConfig(_limit(guard), 2, "warn") for guard in SICK}
    _, guards = guarded(tmp_path, **settings)
    guards.check(1, HEALTHY)
    guards.check(2, HEALTHY | SICK[name])
    assert warned(capsys) == [], "once is not twice in a row"
    guards.check(3, HEALTHY)
    guards.check(4, HEALTHY | SICK[name])
    guards.check(5, HEALTHY | SICK[name])
    assert warned(capsys) == [name]
    guards.check(6, HEALTHY | SICK[name])
    guards.check(7, HEALTHY | SICK[name])
    assert warned(capsys) == [name], "and again after as many steps"


def _limit(guard: str) -> float:
    return getattr(load_config(Config, TINY, []).guards, guard).limit


def test_a_reward_that_falls_from_its_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows of two: best (0.6 + 0.4) / 2 = 0.5. Then 0.2, 0.2 (mean 0.2 < 0.5 × 0.5), twice in a row."""
    _, guards = guarded(tmp_path, reward_drop=GuardConfig(0.5, 2, "warn"))
    rewards = (0.6, 0.4, 0.2, 0.2, math.nan, 0.2)
    tripped = []
    for step, reward in enumerate(rewards):
        guards.check(step, HEALTHY | {"reward/mean": reward})
        tripped.append("reward_drop" in warned(capsys))
    # means: -, 0.5, 0.3, 0.2, 0.2 (the step without a verdict adds nothing), 0.2
    assert tripped == [False, False, False, False, True, False]


def test_steps_without_an_update_trip_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, guards = guarded(tmp_path, grad_norm=GuardConfig(0.0, 1, "warn"))
    absent = ("update/grad_norm", "rollout/logprob_gap/mean")
    guards.check(1, {name: value for name, value in HEALTHY.items() if name not in absent})
    assert warned(capsys) == []


def test_off_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, guards = guarded(tmp_path, length=GuardConfig(1e9, 1, "ignore"))
    guards.check(1, HEALTHY)
    assert warned(capsys) == []


def test_stop_says_where_to_look(tmp_path: Path) -> None:
    _, guards = guarded(tmp_path, length=GuardConfig(10.0, 1, "stop"))
    with pytest.raises(UserError, match=r"guard length, step 7: .* 2 \(limit 10\).*end-of-turn"):
        guards.check(7, HEALTHY | SICK["length"])


def test_pause_waits_for_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, guards = guarded(tmp_path, length=GuardConfig(10.0, 1, "pause"))
    with run:
        run.open_folder()
        sign = tmp_path / "run" / "continue"
        threading.Timer(1.0, sign.touch).start()
        start = time.monotonic()
        guards.check(1, HEALTHY | SICK["length"])
        assert time.monotonic() - start >= 1.0
        assert not sign.exists()
        assert not run.stopping
    output = capsys.readouterr().out
    assert "PAUSED: guard length" in output
    assert str(sign) in output.replace("\n", "")


def test_a_guards_memory_is_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, guards = guarded(tmp_path, length=GuardConfig(10.0, 2, "warn"))
    guards.check(1, HEALTHY | SICK["length"])
    _, resumed = guarded(tmp_path, length=GuardConfig(10.0, 2, "warn"))
    resumed.load_state_dict(guards.state_dict())
    resumed.check(2, HEALTHY | SICK["length"])
    assert warned(capsys) == ["length"]


def test_guards_change_no_number_of_a_run() -> None:
    """So their limits may be mended in a run that goes on."""
    from core.config import config_hash

    override: list[Any] = ["guards.length={limit: 3.0, steps: 9, action: pause}"]
    assert config_hash(load_config(Config, TINY, override)) == config_hash(load_config(Config, TINY, []))
