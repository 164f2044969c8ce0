"""pass@k and its errors, against enumeration and hand-worked numbers."""

from __future__ import annotations

from itertools import combinations

import pytest

from core.evaluate import Outcome, count_outcomes, evaluation_metrics, pass_at_k, pass_rates
from core.format_checks import FormatReport
from core.lean.verdict import LeanResult, Verdict
from core.problems import Problem
from core.rewards import ScoredRollout, reward
from core.rollout import Rollout, RolloutRequest


@pytest.mark.parametrize("samples", range(1, 7))
def test_pass_at_k_is_the_mean_over_all_subsets(samples: int) -> None:
    for correct in range(samples + 1):
        results = [i < correct for i in range(samples)]
        for k in range(1, samples + 1):
            subsets = list(combinations(results, k))
            assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(8, 1, 8) == 1.0  # best@8 by bootstrap would say 1 − (7/8)^8 = 0.656
    assert pass_at_k(8, 0, 8) == 0.0
    assert pass_at_k(4, 2, 2) == pytest.approx(1 - 1 / 6)  # of 6 pairs one has no right sample
    for samples, correct, k in ((4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)):
        with pytest.raises(ValueError, match="not defined"):
            pass_at_k(samples, correct, k)


def _outcome(name: str, **counts: int) -> Outcome:
    empty = dict.fromkeys(("samples", "proved", "malformed", "fix_tried", "fix_proved", "again_proved"), 0)
    return Outcome(name, **(empty | counts))


def test_rates_leave_out_what_was_not_judged() -> None:
    outcomes = [
        _outcome("a", samples=4, proved=1, fix_tried=3, fix_proved=2),
        _outcome("b", samples=2, proved=0),  # two of its samples were censored
        _outcome("c"),  # all censored: neither right nor wrong
    ]
    assert pass_rates(outcomes, 1, fixed=False) == [0.25, 0.0]
    assert pass_rates(outcomes, 4, fixed=False) == [1.0]
    assert pass_rates(outcomes, 1, fixed=True) == [0.75, 0.0]
    metrics = evaluation_metrics(outcomes, 4)
    assert metrics["evaluate/pass@1"] == 0.125
    assert metrics["evaluate/censored"] == 6
    assert metrics["evaluate/fix/success"] == pytest.approx(2 / 3)


def _scored(problem: Problem, turn: int, verdict: Verdict) -> ScoredRollout:
    rollout = Rollout(RolloutRequest(problem, (1,), "g", turn, ("k",)), (2,), (0.0,), "stop", "text")
    report, result = FormatReport((), "code", 1, (), ""), LeanResult("k", verdict, (), None, 0.1)
    return ScoredRollout(rollout, report, result, reward(report, result))


def test_a_fix_without_a_verdict_is_not_a_failed_one(problem: Problem) -> None:
    """Four attempts: one proved, three failed; of their fixes one is proved, one failed, one unknown."""
    proved, failed, unknown = Verdict.PROVED, Verdict.FAILED, Verdict.UNKNOWN
    attempts = [_scored(problem, 0, verdict) for verdict in (proved, failed, failed, failed)]
    retries = [
        _scored(problem, turn, verdict)
        for fix, again in ((proved, failed), (failed, proved), (unknown, proved))
        for turn, verdict in ((1, fix), (0, again))
    ]
    (outcome,) = count_outcomes(attempts, retries)
    assert outcome == Outcome("g", 4, 1, 0, fix_tried=2, fix_proved=1, again_proved=1, fix_censored=1)
    whole = _outcome("h", samples=4, proved=2, fix_tried=2, fix_proved=1)
    assert pass_rates([outcome, whole], 1, fixed=False) == [0.25, 0.5]
    assert pass_rates([outcome, whole], 1, fixed=True) == [0.75]  # what the first one has is not known
    metrics = evaluation_metrics([outcome, whole], 4)
    assert metrics["evaluate/censored"] == 1
    assert metrics["evaluate/fix/success"] == 0.5
    assert metrics["evaluate/fixed/pass@1"] == 0.75
