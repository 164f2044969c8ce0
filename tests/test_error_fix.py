"""The error-fix turn: which attempts come back, when, and with what prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config import Config, load_config
from core.error_fix import ErrorFixCache, FailedAttempt, failed_attempts, step_requests
from core.format_checks import FormatReport
from core.format_checks.report import Finding
from core.lean.verdict import LeanMessage, LeanResult, Verdict
from core.problems import Problem, ProblemStream
from core.prompts import prompt_ids
from core.rewards import ScoredRollout, reward
from core.rollout import Rollout, RolloutRequest

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"
CODE = "theorem swap (p q : Prop) (h : And p q) : And q p :=\n  h"
ERROR = LeanMessage("error", 2, 2, 2, 3, "type mismatch")


def _scored(problem: Problem, tokenizer: Any, verdict: Verdict | None, turn: int = 0) -> ScoredRollout:
    prompt = prompt_ids(tokenizer, problem, "compact")
    request = RolloutRequest(problem, prompt, "g", turn, ("k",))
    ids = (*tokenizer.encode(CODE, add_special_tokens=False), tokenizer.eos_token_id)
    rollout = Rollout(request, ids, (0.0,) * len(ids), "stop", CODE)
    if verdict is None:
        report = FormatReport((Finding("think_missing", 1, 0, None, "no"),), CODE, 1, (), None)
        return ScoredRollout(rollout, report, None, reward(report, None))
    report = FormatReport((), CODE, 1, (), None)
    result = LeanResult("k", verdict, (ERROR,) if verdict is Verdict.FAILED else (), "loop", 0.1)
    return ScoredRollout(rollout, report, result, reward(report, result))


def _config(*overrides: str) -> Config:
    return load_config(Config, TINY, ["error_fix.only_solved_groups=false", *overrides])


@pytest.mark.parametrize(
    ("verdict", "turn", "comes_back"),
    [
        (Verdict.FAILED, 0, True),
        (Verdict.REFUSED, 0, True),
        (Verdict.TIMEOUT, 0, True),
        (Verdict.CRASHED, 0, True),
        (Verdict.PROVED, 0, False),
        (Verdict.UNKNOWN, 0, False),
        (None, 0, False),
        (Verdict.FAILED, 1, False),
    ],
)
def test_which_attempts_come_back(
    problem: Problem, tokenizer: Any, verdict: Verdict | None, turn: int, comes_back: bool
) -> None:
    scored = _scored(problem, tokenizer, verdict, turn)
    config = _config("prompt.max_tokens=2000")
    assert bool(failed_attempts([scored], tokenizer, [tokenizer.eos_token_id], config)) == comes_back


def test_attempts_of_groups_that_nobody_solved_may_stay_out(problem: Problem, tokenizer: Any) -> None:
    def member(group: str, verdict: Verdict) -> ScoredRollout:
        scored = _scored(problem, tokenizer, verdict)
        request = replace(scored.rollout.request, group=group)
        return replace(scored, rollout=replace(scored.rollout, request=request))

    solved = [member("a", Verdict.FAILED), member("a", Verdict.PROVED)]
    unsolved = [member("b", Verdict.FAILED), member("b", Verdict.UNKNOWN)]
    eos = [tokenizer.eos_token_id]
    for only_solved, expected in (("false", 2), ("true", 1)):
        config = _config("prompt.max_tokens=2000", f"error_fix.only_solved_groups={only_solved}")
        assert len(failed_attempts([*solved, *unsolved], tokenizer, eos, config)) == expected


def test_the_prompt_holds_problem_attempt_and_message(problem: Problem, tokenizer: Any) -> None:
    scored = _scored(problem, tokenizer, Verdict.FAILED)
    config = _config("prompt.max_tokens=2000")
    (attempt,) = failed_attempts([scored], tokenizer, [tokenizer.eos_token_id], config)
    text = tokenizer.decode(attempt.prompt_ids)
    assert text.startswith("<|im_start|>user\nIf p and q")
    assert CODE in text
    assert "type mismatch" in text.split(CODE)[1]
    assert text.endswith("<|im_start|>assistant\n")
    shorter = _config(f"prompt.max_tokens={len(attempt.prompt_ids) - 1}")
    assert failed_attempts([scored], tokenizer, [tokenizer.eos_token_id], shorter) == []


def _attempt(problem: Problem, name: str, number: int = 0) -> FailedAttempt:
    return FailedAttempt(replace(problem, name=name), (1, 2, number), f"no {number}")


def test_the_cache_keeps_the_newest_and_hands_each_out_once(problem: Problem) -> None:
    cache = ErrorFixCache(3)
    cache.add([_attempt(problem, name) for name in "abcd"])
    assert len(cache) == 3
    taken = cache.take(2, seed=1)
    assert len({a.problem.name for a in taken}) == 2
    assert "a" not in {a.problem.name for a in taken}
    rest = cache.take(5, seed=2)
    assert {a.problem.name for a in (*taken, *rest)} == {"b", "c", "d"}
    assert len(cache) == 0
    assert cache.take(1, seed=3) == []


def test_one_attempt_a_problem_and_the_draw_is_by_seed(problem: Problem) -> None:
    def filled() -> ErrorFixCache:
        cache = ErrorFixCache(100)
        cache.add([_attempt(problem, name, number) for name in "abcdef" for number in range(5)])
        return cache

    first, same, other = filled().take(4, 1), filled().take(4, 1), filled().take(4, 2)
    assert first == same != other
    assert len({a.problem.name for a in first}) == 4
    assert len(filled().take(10, 1)) == 6


def test_a_steps_requests(problem: Problem, tokenizer: Any) -> None:
    config = _config("rollout.prompts=4", "error_fix.fraction=0.5", "rollout.group_size=3")
    stream = ProblemStream([replace(problem, name=f"p{i}") for i in range(9)], config)
    cache = ErrorFixCache(10)
    assert [r.turn for r in step_requests(stream, cache, tokenizer, config, 1, config.rollout.prompts)] == [
        0
    ] * 12
    cache.add([_attempt(problem, name) for name in "xyz"])
    requests = step_requests(stream, cache, tokenizer, config, 2, config.rollout.prompts)
    assert [r.turn for r in requests] == [0] * 6 + [1] * 6
    assert len({r.seed_key for r in requests}) == 12
    assert len({r.group for r in requests}) == 4
    for group in {r.group for r in requests}:
        members = [r for r in requests if r.group == group]
        assert len(members) == 3
        assert len({r.prompt_ids for r in members}) == 1
    assert len(cache) == 1
