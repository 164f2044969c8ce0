"""Group advantages: zero sums, explicit groups, censored rewards, and GRPO's division against NumPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.advantages import group_advantages, standardised_advantages

rewards = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.1, -0.3]), st.floats(-5, 5))
rows = st.lists(st.tuples(rewards, st.sampled_from("abcd")), max_size=30)


@given(rows)
def test_each_group_sums_to_zero_and_equals_numpy(pairs):
    advantages = group_advantages([r for r, _ in pairs], [g for _, g in pairs])
    for group in "abcd":
        kept = [r for r, g in pairs if g == group and r is not None]
        ours = [a for a, (r, g) in zip(advantages, pairs, strict=True) if g == group and r is not None]
        assert math.fsum(ours) == pytest.approx(0, abs=1e-12)
        assert ours == pytest.approx(list(np.array(kept) - np.mean(kept)) if kept else [])
    assert all((a is None) == (r is None) for a, (r, _) in zip(advantages, pairs, strict=True))


@given(rows, st.randoms(use_true_random=False))
def test_a_shuffle_moves_advantages_with_their_rows(pairs, shuffler: random.Random):
    order = list(range(len(pairs)))
    shuffler.shuffle(order)
    straight = group_advantages([r for r, _ in pairs], [g for _, g in pairs])
    shuffled = group_advantages([pairs[i][0] for i in order], [pairs[i][1] for i in order])
    assert shuffled == [straight[i] for i in order]


@given(st.floats(-10, 10), st.integers(1, 9))
def test_equal_rewards_and_groups_of_one_give_exactly_zero(reward, size):
    assert group_advantages([reward] * size, ["g"] * size) == [0.0] * size
    assert standardised_advantages([reward] * size, ["g"] * size, epsilon=1e-6) == [0.0] * size


def test_by_hand():
    # Group a: 1, 0, 0, censored: mean 1/3. Group b: a single reward. Group c: all censored.
    values = [1.0, 1.0, 0.0, None, 0.0, None]
    groups = ["a", "b", "a", "a", "a", "c"]
    expected = [2 / 3, 0.0, -1 / 3, None, -1 / 3, None]
    assert group_advantages(values, groups) == pytest.approx(expected)
    # Standard deviation with Bessel's correction: √((4/9 + 1/9 + 1/9) / 2) = √(1/3).
    by_deviation = [None if a is None else a / math.sqrt(1 / 3) for a in expected]
    assert standardised_advantages(values, groups, epsilon=0.0001)[0] == pytest.approx(
        2 / 3 / (math.sqrt(1 / 3) + 0.0001)
    )
    assert standardised_advantages(values[:5], groups[:5], epsilon=1e-12) == pytest.approx(by_deviation[:5])


def test_a_censored_row_leaves_before_the_baseline():
    with_row = group_advantages([1.0, 0.0, None], ["g"] * 3)
    assert with_row == [*group_advantages([1.0, 0.0], ["g"] * 2), None]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="2 rewards but 1 group ids"):
        group_advantages([1.0, 0.0], ["a"])
    with pytest.raises(ValueError, match=r"reward 1 .*nan.*None"):
        group_advantages([1.0, math.nan], ["a", "a"])
