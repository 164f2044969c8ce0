"""Means, errors and differences of evaluations, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest

from commands.estimates import estimate, fix_against_again, paired_difference
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
