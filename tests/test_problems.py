"""Problems: the order they are drawn in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from core.config import Config, load_config
from core.problems import Problem, ProblemStream

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"


def _problems(count: int) -> list[Problem]:
    return [Problem(f"t{i}", f"theorem t{i} : True :=", "", "", "test") for i in range(count)]


def _stream(count: int, *overrides: str) -> ProblemStream:
    config = load_config(Config, TINY, ["rollout.prompts=8", "error_fix.fraction=0.5", *overrides])
    return ProblemStream(_problems(count), config)


def test_a_step_draws_the_same_whatever_was_drawn_before() -> None:
    stream, again = _stream(10), _stream(10)
    for step in (0, 1, 2):
        stream.draw(step, 4)
    assert again.draw(7, 4) == stream.draw(7, 4)
    assert _stream(10, "run.seed=1").draw(7, 4) != stream.draw(7, 4)


def test_full_steps_see_every_problem_once_an_epoch() -> None:
    stream = _stream(12)  # stride 4: three steps an epoch
    for epoch in (0, 5):
        drawn = [p.name for step in range(3) for p in stream.draw(3 * epoch + step, 4)]
        assert Counter(drawn) == Counter(p.name for p in _problems(12))
    assert [p.name for p in stream.draw(0, 12)] != [p.name for p in stream.draw(3, 12)], "reshuffled"


def test_a_window_may_cross_epochs() -> None:
    stream = _stream(5)
    assert stream.draw(1, 4)[:1] == [stream._at(4)]
    assert len(stream.draw(1, 100)) == 100
