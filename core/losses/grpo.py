"""GRPO, the ablation of Dr. GRPO: a mean over each sequence's tokens, then a mean over sequences.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import (
    Stats,
    clipped_surrogate,
    log_ratio,
    masked_sum,
    sequence_sum,
    surrogate_stats,
)


def grpo_loss(
    policy_logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    mask_C: Tensor,
    weights_C: Tensor,
    sequence_C: Tensor,
    sequence_count: int,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    normaliser: float,
) -> tuple[Tensor, Stats]:
    """This micro-batch's part of the update's loss; parts are summed over micro-batches and ranks:

        loss = 1/N · Σ_i 1/|o_i| · Σ_{t ∈ i} m_it · w_it · ℓ_it,     |o_i| = Σ_t m_it

    normaliser: N, the sequences of the update over all ranks as configured. A token's coefficient falls
    with its sequence's length, so long wrong answers are punished less: the bias that Dr. GRPO removes.
    GRPO's advantages are divided by the group's standard deviation (`standardised_advantages`).

    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3.
    """
    log_ratio_C = log_ratio(policy_logprobs_C, old_logprobs_C, mask_C)
    bounds = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    per_token_C = clipped_surrogate(log_ratio_C, advantages_C, **bounds)
    lengths_C = sequence_sum(mask_C, mask_C, sequence_C, sequence_count)[sequence_C]
    loss = masked_sum(per_token_C / lengths_C.clamp(min=1), mask_C, weights_C) / normaliser
    return loss, surrogate_stats(loss.detach(), log_ratio_C, advantages_C, mask_C, **bounds)
