"""Group advantages: how much better a rollout's reward is than its group's mean.

Shapes: B rollouts, in any order; groups are told apart by an explicit id, never by position or prompt.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence


def group_advantages(rewards_B: Sequence[float | None], groups_B: Sequence[Hashable]) -> list[float | None]:
    """A_i = r_i − mean of its group's rewards (Dr. GRPO: no division by the standard deviation).

    A reward of None is censored (the infrastructure failed, so nothing is known about the proof): it
    leaves its group before the baseline is computed and its advantage is None; do not train on it. A
    group with one remaining reward, or with equal rewards, has advantage exactly 0.

    >>> group_advantages([1.0, 0.0, None, 1.0, 1.0], ["a", "a", "a", "b", "b"])
    [0.5, -0.5, None, 0.0, 0.0]
    """
    means = {group: _mean(rewards) for group, rewards in _by_group(rewards_B, groups_B).items()}
    return [
        None if reward is None else reward - means[group]
        for reward, group in zip(rewards_B, groups_B, strict=True)
    ]


def standardised_advantages(
    rewards_B: Sequence[float | None], groups_B: Sequence[Hashable], *, epsilon: float
) -> list[float | None]:
    """GRPO's A_i = (r_i − mean) / (std + epsilon), std with Bessel's correction: the ablation.

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, §4.1.
    """
    groups = _by_group(rewards_B, groups_B)
    means = {group: _mean(rewards) for group, rewards in groups.items()}
    deviations = {
        group: math.sqrt(
            math.fsum((reward - means[group]) ** 2 for reward in rewards) / max(len(rewards) - 1, 1)
        )
        for group, rewards in groups.items()
    }
    return [
        None if reward is None else (reward - means[group]) / (deviations[group] + epsilon)
        for reward, group in zip(rewards_B, groups_B, strict=True)
    ]


def _mean(rewards: Sequence[float]) -> float:
    low, high = min(rewards), max(rewards)
    return low if low == high else math.fsum(rewards) / len(rewards)  # exact where all are equal


def _by_group(rewards_B: Sequence[float | None], groups_B: Sequence[Hashable]) -> dict[Hashable, list[float]]:
    if len(rewards_B) != len(groups_B):
        raise ValueError(
            f"{len(rewards_B)} rewards but {len(groups_B)} group ids: give one group id a reward"
        )
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for index, (reward, group) in enumerate(zip(rewards_B, groups_B, strict=True)):
        if reward is None:
            continue
        if not math.isfinite(reward):
            raise ValueError(
                f"reward {index} (group {group!r}) is {reward}: a failed check is None, not a number"
            )
        groups[group].append(reward)
    return groups
