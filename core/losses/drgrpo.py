"""Dr. GRPO: the clipped surrogate, summed over all tokens of an update and divided by one global constant.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import Stats, clipped_surrogate, log_ratio, masked_sum, surrogate_stats


def drgrpo_loss(
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

        loss = 1/(N·L) · Σ_c m_c · w_c · ℓ_c          (ℓ: `clipped_surrogate`)

    old_logprobs: of the policy that sampled, under the trainer; `policy_logprobs.detach()` when the
    update is strictly on-policy, which saves a forward pass and makes the gradient REINFORCE's.
    normaliser: N·L, fixed before the first micro-batch. N is the number of sequences of an update over
    all ranks *as configured* (prompts × group size). It does not shrink when rows are censored, masked
    or have advantage 0, so no row's coefficient depends on the fate of another. L is a constant, the
    response limit in tokens.

    Every token of every sequence has the same coefficient 1/(N·L): no length bias.
    Source: Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783.
    """
    log_ratio_C = log_ratio(policy_logprobs_C, old_logprobs_C, mask_C)
    bounds = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    per_token_C = clipped_surrogate(log_ratio_C, advantages_C, **bounds)
    # Dr. GRPO: one constant for all tokens, where GRPO divides each sequence by its own length.
    loss = masked_sum(per_token_C, mask_C, weights_C) / normaliser
    return loss, surrogate_stats(loss.detach(), log_ratio_C, advantages_C, mask_C, **bounds)
