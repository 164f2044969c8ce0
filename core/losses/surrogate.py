"""The clipped surrogate and the masked sums that the policy losses are built from.

Shapes: C completion tokens of a micro-batch, S its sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

Stats = dict[str, Tensor]
"""Metrics of one micro-batch. "…/sum" and "…/mean" hold sums over its unmasked tokens, "…/max" a maximum and
"tokens/sum" the count by which core.update.reduce_stats divides each mean, once, over the whole update."""


def log_ratio(policy_logprobs_C: Tensor, old_logprobs_C: Tensor, mask_C: Tensor) -> Tensor:
    """log ρ = policy − old; 0 where the mask is 0.

    What is masked may then hold anything, even NaN; a mask applied later would leave 0 · NaN in gradients.
    """
    return torch.where(mask_C > 0, policy_logprobs_C - old_logprobs_C, 0.0)


def clipped_surrogate(
    log_ratio_C: Tensor,
    advantages_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Tensor:
    """PPO's pessimistic surrogate, with decoupled bounds:

        ρ = exp(log ρ),   ℓ = −min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)

    dual_clip c (> 1; None: off) bounds the loss of negative advantages as well: ℓ ≤ −c·A where A < 0.

    Sources: Schulman et al., arXiv 1707.06347 (clip); Yu et al. (DAPO), arXiv 2503.14476 (two bounds);
    Ye et al., arXiv 1912.09729 (dual clip).
    """
    ratio_C = torch.exp(log_ratio_C)
    clipped_C = ratio_C.clamp(1 - clip_low, 1 + clip_high)
    loss_C = -torch.minimum(ratio_C * advantages_C, clipped_C * advantages_C)
    if dual_clip is None:
        return loss_C
    return torch.where(advantages_C < 0, torch.minimum(loss_C, -dual_clip * advantages_C), loss_C)


@torch.no_grad()
def surrogate_stats(
    loss: Tensor,
    log_ratio_C: Tensor,
    advantages_C: Tensor,
    mask_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Stats:
    """The loss, fractions of tokens whose gradient a bound removed, KL(old‖policy) by k1, largest ratio."""
    ratio_C = torch.exp(log_ratio_C)
    high_C = (ratio_C > 1 + clip_high) & (advantages_C > 0)
    low_C = (ratio_C < 1 - clip_low) & (advantages_C < 0)
    stats = {
        "loss/policy/sum": loss,
        "tokens/sum": mask_C.sum(),
        "policy/clip_fraction_high/mean": (mask_C * high_C).sum(),
        "policy/clip_fraction_low/mean": (mask_C * low_C).sum(),
        "policy/kl_k1/mean": -(mask_C * log_ratio_C).sum(),
        "policy/ratio/max": (mask_C * ratio_C).max(),
    }
    if dual_clip is not None:
        dual_C = (ratio_C > dual_clip) & (advantages_C < 0)
        stats["policy/clip_fraction_dual/mean"] = (mask_C * dual_C).sum()
    return stats


def masked_sum(values_C: Tensor, mask_C: Tensor, weights_C: Tensor) -> Tensor:
    """Σ_c m_c · w_c · x_c, and 0 for what is masked whatever it holds."""
    return torch.where(mask_C > 0, weights_C * values_C, 0.0).sum()


def sequence_sum(values_C: Tensor, mask_C: Tensor, sequence_C: Tensor, sequence_count: int) -> Tensor:
    """Sums [S] over the unmasked tokens of each sequence of the micro-batch (which holds it whole)."""
    kept_C = torch.where(mask_C > 0, values_C, 0.0)
    return kept_C.new_zeros(sequence_count).index_add(0, sequence_C, kept_C)
