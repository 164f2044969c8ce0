"""pass@k and its errors, against enumeration and hand-worked numbers."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from core.evaluate import (
    Outcome,
    estimate,
    evaluation_metrics,
    fix_against_again,
    paired_difference,
    pass_at_k,
    pass_rates,
)


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


def test_estimate_and_paired_difference_by_hand() -> None:
    # mean 0.5, squared deviations 4 × 0.25 = 1, sample variance 1/3, error sqrt(1/12)
    whole = estimate([0, 1, 0, 1])
    assert whole.mean == 0.5
    assert whole.error == pytest.approx(math.sqrt(1 / 12))
    # differences 0.5, 0, 0.5, 0: mean 0.25, variance 1/12, error sqrt(1/48), z = 0.25·sqrt(48) = 1.732
    difference, p = paired_difference([0, 1, 0, 1], [0.5, 1, 0.5, 1])
    assert difference.mean == 0.25
    assert p == pytest.approx(0.0833, abs=1e-3)  # 2·(1 − Φ(√3))
    assert paired_difference([0, 1], [0, 1])[1] == 1.0
    assert math.isnan(estimate([]).mean)


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


def test_fix_against_again_by_hand() -> None:
    outcomes = [
        _outcome("a", samples=8, fix_tried=4, fix_proved=2, again_proved=1),
        _outcome("b", samples=8, fix_tried=2, fix_proved=0, again_proved=1),
        _outcome("c", samples=8, proved=8),
    ]
    fix, again, difference = fix_against_again(outcomes)
    assert (fix.mean, again.mean, difference.mean) == pytest.approx((2 / 6, 2 / 6, 0.0))
    # residuals of the difference: 1 − 0·4 and −1 − 0·2: sqrt(1 + 1) / 6
    assert difference.error == pytest.approx(math.sqrt(2) / 6)
    # residuals of fix: 2 − 4/3 and 0 − 2/3: sqrt(2·(2/3)²) / 6
    assert fix.error == pytest.approx(math.sqrt(2 * (2 / 3) ** 2) / 6)
    assert math.isnan(fix_against_again([_outcome("a", samples=1)])[0].mean)
