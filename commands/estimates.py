"""Means over held-out problems with their standard errors, and what differs between two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.evaluate import Outcome, pass_rate


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f} %"

    def signed(self) -> str:
        """As a difference, in points."""
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of independent values, one a problem."""
    if not values:
        return Estimate(math.nan, math.nan)
    array = np.asarray(values, dtype=float)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return Estimate(float(array.mean()), float(error))


def paired_rates(
    before: Sequence[Outcome], after: Sequence[Outcome], k: int, *, fixed: bool
) -> tuple[list[float], list[float]]:
    """pass@k before and after of the problems, by name, that have one in both."""
    later = {outcome.name: outcome for outcome in after}
    couples = ((outcome, later[outcome.name]) for outcome in before if outcome.name in later)
    rates = ((pass_rate(old, k, fixed=fixed), pass_rate(new, k, fixed=fixed)) for old, new in couples)
    pairs = [(old, new) for old, new in rates if old is not None and new is not None]
    return [old for old, _ in pairs], [new for _, new in pairs]


def paired_difference(before: Sequence[float], after: Sequence[float]) -> tuple[Estimate, float]:
    """Mean of after − before over the same problems, and the two-sided p-value of its z-test."""
    difference = estimate([b - a for a, b in zip(before, after, strict=True)])
    if not difference.error:
        return difference, 1.0 if difference.mean == 0 else 0.0
    z = abs(difference.mean) / difference.error
    return difference, math.erfc(z / math.sqrt(2.0))


def fix_against_again(outcomes: Sequence[Outcome]) -> tuple[Estimate, Estimate, Estimate]:
    """Success of the error-fix turn, of a fresh second attempt, and their paired difference.

    Ratios over all failed attempts that got both; standard errors by linearisation with problems as
    the independent units (Cochran, Sampling Techniques, 3rd ed., §6.4).
    """
    tried = np.array([o.fix_tried for o in outcomes], dtype=float)
    fixed = np.array([o.fix_proved for o in outcomes], dtype=float)
    again = np.array([o.again_proved for o in outcomes], dtype=float)

    def ratio(successes: np.ndarray) -> Estimate:
        if not tried.sum():
            return Estimate(math.nan, math.nan)
        mean = successes.sum() / tried.sum()
        residuals = successes - mean * tried
        return Estimate(float(mean), float(math.sqrt((residuals**2).sum()) / tried.sum()))

    return ratio(fixed), ratio(again), ratio(fixed - again)
