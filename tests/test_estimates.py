"""Means, errors and differences of evaluations, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest

from commands.estimates import estimate, fix_against_again, paired_difference, paired_rates
from commands.report import before_after_table
from core.evaluate import Outcome


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


def test_a_tiny_p_value_is_not_zero() -> None:
    """z = 10: 1 − Φ(10) rounds to 0 in float64; Φ(−10) = 7.62e-24 (Abramowitz & Stegun, table 26.2)."""
    spread = math.sqrt(0.99)  # 100 differences 1 ± s have the error sqrt(s² · 100/99 / 100) = 0.1
    difference, p = paired_difference([0.0] * 100, [1 - spread, 1 + spread] * 50)
    assert difference.error == pytest.approx(0.1)
    assert p == pytest.approx(2 * 7.62e-24, rel=1e-3)


def test_problems_are_paired_by_name_where_each_side_lacks_another() -> None:
    """Samples of "a" were censored before, of "b" after: lists of one length, of other problems."""
    before = [
        Outcome("a", 1, 1, 0, 0, 0, 0),
        Outcome("b", 2, 0, 0, 2, 1, 0),
        Outcome("c", 2, 1, 0, 1, 0, 0),
        Outcome("d", 2, 0, 0, 2, 0, 0),
    ]
    after = [
        Outcome("a", 2, 2, 0, 0, 0, 0),
        Outcome("b", 1, 0, 0, 1, 0, 0),
        Outcome("c", 2, 2, 0, 0, 0, 0),
        Outcome("d", 2, 1, 0, 0, 0, 0, fix_censored=1),
    ]
    assert paired_rates(before, after, 2, fixed=False) == ([1.0, 0.0], [1.0, 1.0])
    assert paired_rates(before, after, 2, fixed=True) == ([1.0], [1.0])
    assert paired_rates(before, after[1:3], 1, fixed=False) == ([0.0, 0.5], [0.0, 1.0])
    table = before_after_table(before, after, 2)
    names = list(table.columns[0].cells)
    assert names[:4] == [
        "pass@1",
        "pass@1 after error fixing, 3 problems",
        "pass@2, 2 problems",
        "pass@2 after error fixing, 1 problems",
    ]


def test_fix_against_again_by_hand() -> None:
    outcomes = [
        Outcome("a", 8, 0, 0, fix_tried=4, fix_proved=2, again_proved=1),
        Outcome("b", 8, 0, 0, fix_tried=2, fix_proved=0, again_proved=1),
        Outcome("c", 8, 8, 0, fix_tried=0, fix_proved=0, again_proved=0),
    ]
    fix, again, difference = fix_against_again(outcomes)
    assert (fix.mean, again.mean, difference.mean) == pytest.approx((2 / 6, 2 / 6, 0.0))
    # residuals of the difference: 1 − 0·4 and −1 − 0·2: sqrt(1 + 1) / 6
    assert difference.error == pytest.approx(math.sqrt(2) / 6)
    # residuals of fix: 2 − 4/3 and 0 − 2/3: sqrt(2·(2/3)²) / 6
    assert fix.error == pytest.approx(math.sqrt(2 * (2 / 3) ** 2) / 6)
    assert math.isnan(fix_against_again([Outcome("a", 1, 0, 0, 0, 0, 0)])[0].mean)
