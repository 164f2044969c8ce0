"""DAPO's token mean: the clipped surrogate averaged over all tokens of an update.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.drgrpo import drgrpo_loss
from core.losses.surrogate import Stats


def dapo_loss(
    policy_logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    mask_C: Tensor,
    weights_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    normaliser: float,
) -> tuple[Tensor, Stats]:
    """This micro-batch's part of the update's loss; parts are summed over micro-batches and ranks:

        loss = 1/n · Σ_c m_c · w_c · ℓ_c

    normaliser: n, the unmasked completion tokens of the *whole update* over all ranks
    (`packing.completion_tokens`). It differs from Dr. GRPO in this number alone: n moves with the
    lengths that were sampled, so the same token weighs less in an update of long sequences.

    Source: Yu et al., DAPO, arXiv 2503.14476, eq. 8.
    """
    return drgrpo_loss(
        policy_logprobs_C,
        old_logprobs_C,
        advantages_C,
        mask_C,
        weights_C,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=normaliser,
    )
