"""GSPO: one importance ratio for a whole sequence, the geometric mean of its tokens' ratios.

Shapes: C completion tokens of a micro-batch, S its sequences.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import (
    Stats,
    clipped_surrogate,
    log_ratio,
    sequence_sum,
    surrogate_stats,
)


def gspo_loss(
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
    normaliser: float,
) -> tuple[Tensor, Stats]:
    """This micro-batch's part of the update's loss; parts are summed over micro-batches and ranks:

        s_i = exp(1/|o_i| · Σ_t m_it · log ρ_it),   loss = −1/N · Σ_i w_i · min(s_i·A_i, clip(s_i)·A_i)

    normaliser: N, the sequences of the update over all ranks as configured. A_i and w_i are the means over
    the sequence's unmasked tokens (both are constant in a sequence as a rule). The bounds are about 1000
    times tighter than a token ratio's: 3e-4 and 4e-4 in the paper.

    Source: Zheng et al., Group Sequence Policy Optimization, arXiv 2507.18071, eq. 5 to 7.
    """
    log_ratio_C = log_ratio(policy_logprobs_C, old_logprobs_C, mask_C)
    lengths_S = sequence_sum(mask_C, mask_C, sequence_C, sequence_count)

    def mean_S(values_C: Tensor) -> Tensor:
        return sequence_sum(values_C, mask_C, sequence_C, sequence_count) / lengths_S.clamp(min=1)

    log_ratio_S, advantages_S = mean_S(log_ratio_C), mean_S(advantages_C)
    bounds = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": None}
    per_sequence_S = clipped_surrogate(log_ratio_S, advantages_S, **bounds)
    loss = (mean_S(weights_C) * per_sequence_S).sum() / normaliser
    of_tokens_C = log_ratio_S.detach()[sequence_C]
    return loss, surrogate_stats(loss.detach(), of_tokens_C, advantages_C, mask_C, **bounds)
