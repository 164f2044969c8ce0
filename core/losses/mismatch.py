"""Engine mismatch: the sampler's log-probs against the trainer's, as a metric and as importance weights.

Shapes: C completion tokens of a micro-batch. "old" is the trainer's policy as it was when it sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.losses.surrogate import Stats, log_ratio, sequence_sum


@torch.no_grad()
def token_mismatch(old_logprobs_C: Tensor, sampler_logprobs_C: Tensor, mask_C: Tensor) -> Tensor:
    """log(π_old/π_sampler) of each token; 0 where masked."""
    return log_ratio(old_logprobs_C, sampler_logprobs_C, mask_C)


@torch.no_grad()
def sequence_mismatch(
    old_logprobs_C: Tensor,
    sampler_logprobs_C: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
    sequence_count: int,
) -> Tensor:
    """log(π_old/π_sampler) of the whole sequence (the sum of its tokens'), repeated for each of its tokens.

    Unbiased where the token's ratio is not, with a variance that grows with the length.
    """
    by_token_C = log_ratio(old_logprobs_C, sampler_logprobs_C, mask_C)
    return sequence_sum(by_token_C, mask_C, sequence_C, sequence_count)[sequence_C]


@torch.no_grad()
def truncated_weights(mismatch_C: Tensor, *, cap: float) -> Tensor:
    """min(exp(mismatch), cap): importance weights to multiply weights_C by; `cap` bounds the variance.

    Source: Espeholt et al., IMPALA, arXiv 1802.01561; for engines: Yao et al., TIS, 2025.
    """
    return mismatch_C.exp().clamp(max=cap)


@torch.no_grad()
def masked_weights(mismatch_C: Tensor, *, low: float, high: float) -> Tensor:
    """exp(mismatch) inside [low, high], 0 outside: what the engines disagree on gives no gradient.

    The normaliser of the loss is not changed by tokens that get 0. Source: IcePop (Ring-1T),
    arXiv 2510.18855.
    """
    weights_C = mismatch_C.exp()
    return torch.where((weights_C >= low) & (weights_C <= high), weights_C, 0.0)


@torch.no_grad()
def stale_weights(
    old_logprobs_C: Tensor, sampler_logprobs_C: Tensor, stale_C: Tensor, *, cap: float
) -> Tensor:
    """Weights of partial rollouts' tokens: min(π_old/π_sampler, cap) where an older policy sampled (stale_C
    1), 1 elsewhere; cap 0 masks the old ones. Source: Fu et al., AReaL, arXiv 2505.24298."""
    weights_C = truncated_weights(token_mismatch(old_logprobs_C, sampler_logprobs_C, stale_C), cap=cap)
    return torch.where(stale_C == 1, weights_C, 1.0)


@torch.no_grad()
def mismatch_stats(
    old_logprobs_C: Tensor, sampler_logprobs_C: Tensor, fresh_C: Tensor, place_C: Tensor, *, limit: int
) -> Stats:
    """|old − sampler| in nats (mean, largest, mean by quarter of the response limit), KL(sampler‖old) by k3,
    over the tokens with fresh_C 1; to be logged at every update.

    fresh_C: the mask, less what older policies sampled; place_C: place of the token in its completion; limit:
    the response limit.
    """
    gap_C = log_ratio(old_logprobs_C, sampler_logprobs_C, fresh_C)
    size_C, count = gap_C.abs(), fresh_C.sum()
    stats = {
        "rollout/logprob_gap/mean": size_C.sum(),
        "rollout/logprob_gap/count": count,
        "rollout/logprob_gap/max": size_C.max(),
        "rollout/kl_k3/mean": (gap_C.exp() - 1 - gap_C).sum(),
        "rollout/kl_k3/count": count,
    }
    for quarter in range(4):
        inside_C = fresh_C * (place_C * 4 // limit == quarter)
        stats[f"rollout/logprob_gap/quarter_{quarter + 1}/mean"] = (size_C * inside_C).sum()
        stats[f"rollout/logprob_gap/quarter_{quarter + 1}/count"] = inside_C.sum()
    return stats
