"""Rewards: format first, then Lean, and never a number where Lean gave no verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from core.config import Config, load_config
from core.format_checks import PRESETS, FormatReport
from core.format_checks.report import Finding
from core.lean.backends import make_verifier
from core.lean.verdict import LeanResult, Verdict, Verifier
from core.problems import Problem
from core.rewards import Judge, ScoredRollout, in_request_order, reward
from core.rollout import Rollout, RolloutRequest

TINY = Path(__file__).resolve().parents[1] / "experiments" / "drgrpo_tiny" / "config.yaml"
GOOD_PROOF = ("have h1 : q := h.right", "have h2 : p := h.left", "And.intro h1 h2")
PASSED = FormatReport((), "theorem", 1, (), "")
REJECTED = FormatReport((Finding("think_missing", 1, 0, None, "no"),), None, None, (), None)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.PROVED, 1.0),
        (Verdict.FAILED, 0.0),
        (Verdict.REFUSED, 0.0),
        (Verdict.TIMEOUT, 0.0),
        (Verdict.CRASHED, 0.0),
        (Verdict.UNKNOWN, None),
    ],
)
def test_the_reward_of_each_verdict(verdict: Verdict, expected: float | None) -> None:
    result = LeanResult("k", verdict, (), None, 0.1)
    assert reward(PASSED, result) == expected
    assert reward(REJECTED, result) == 0.0, "a malformed output earns nothing whatever its proof is worth"
    assert reward(REJECTED, None) == 0.0


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    verifier = make_verifier(load_config(Config, TINY, ["lean.timeout_s=5"]).lean)
    yield verifier
    verifier.close()


def _rollout(problem: Problem, lines: tuple[str, ...], number: int, finish: str = "stop") -> Rollout:
    body = "\n".join(f"  {line}" for line in lines)
    text = (
        f"<think>\nWe need And q p, so we split h.\n```tactics\n{body}\n```\n</think>\n"
        f"```lean4\n{problem.statement}\n{body}\n```"
    )
    request = RolloutRequest(problem, (1,), "g", 0, ("test", number))
    return Rollout(request, (1,), (0.0,), finish, text)


def _judge(verifier: Verifier, said: list[str]) -> Judge:
    return Judge(verifier, PRESETS["tiny"], retry_s=0.2, say=said.append)


def test_rollouts_are_judged_by_lean(problem: Problem, verifier: Verifier) -> None:
    rollouts = [
        _rollout(problem, GOOD_PROOF, 0),
        _rollout(problem, ("have h1 : p := h.left", "And.intro h1 h1"), 1),
        _rollout(problem, GOOD_PROOF, 2, finish="length"),
        replace(_rollout(problem, GOOD_PROOF, 3), text="I think it is obvious."),
        _rollout(problem, ("sorry", "sorry"), 4),
    ]
    counted: list[int] = []
    said: list[str] = []
    scored = _judge(verifier, said).score(rollouts, counted.append)
    scored = in_request_order(scored, [r.request for r in rollouts])
    assert [s.reward for s in scored] == [1.0, 0.0, 0.0, 0.0, 0.0]
    verdicts = [s.result.verdict if s.result else None for s in scored]
    assert verdicts == [Verdict.PROVED, Verdict.FAILED, None, None, Verdict.REFUSED]
    assert sum(counted) == 5
    assert said == []


def test_each_rollout_is_sent_while_later_ones_are_still_sampled(
    problem: Problem, verifier: Verifier
) -> None:
    """The second rollout is only 'sampled' once the first has come back from Lean."""
    submitted: list[object] = []
    submit = verifier.submit

    def watching(check: object) -> object:
        submitted.append(submit(check))  # type: ignore[arg-type]
        return submitted[-1]

    verifier.submit = watching  # type: ignore[method-assign, assignment]

    def sampling() -> Iterator[Rollout]:
        yield _rollout(problem, GOOD_PROOF, 0)
        submitted[0].result(timeout=20)  # type: ignore[attr-defined]
        yield _rollout(problem, GOOD_PROOF, 1)

    scored = _judge(verifier, []).score(sampling(), lambda count: None)
    assert [s.reward for s in scored] == [1.0, 1.0]


def test_a_stopped_lean_pauses_the_run_and_scores_no_zeros(problem: Problem, verifier: Verifier) -> None:
    """All Lean processes are killed as fast as they appear; the run says so, waits, and resumes."""
    said: list[str] = []
    stop = threading.Event()

    def kill_lean() -> None:
        while not stop.is_set():
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            stop.wait(0.005)

    killer = threading.Thread(target=kill_lean)
    killer.start()

    def resume() -> None:
        deadline = time.monotonic() + 60
        while not any("PAUSED" in line for line in said) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        stop.set()

    helper = threading.Thread(target=resume)
    helper.start()
    try:
        rollouts = [_rollout(problem, (*GOOD_PROOF[:2], f"And.intro h1 h2 -- {i}"), i) for i in range(4)]
        scored = _judge(verifier, said).score(rollouts, lambda count: None)
    finally:
        stop.set()
        killer.join()
        helper.join()
    assert [s.reward for s in scored] == [1.0] * 4
    assert any(line.startswith("PAUSED") and "No rewards are given" in line for line in said)
    assert said[-1].startswith("RESUMED")


def test_order_is_that_of_the_requests(problem: Problem) -> None:
    rollouts = [_rollout(problem, GOOD_PROOF, i) for i in range(3)]
    scored = [ScoredRollout(r, PASSED, None, None) for r in (rollouts[2], rollouts[0], rollouts[1])]
    requests = [r.request for r in rollouts]
    assert [s.rollout.request for s in in_request_order(scored, requests)] == requests
