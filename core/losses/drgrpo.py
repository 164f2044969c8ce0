"""Dr. GRPO: the clipped surrogate summed over all tokens of an update, divided by one global constant.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

Stats = dict[str, Tensor]
"""Metrics of a micro-batch: `…/sum` and `…/mean` hold sums, `…/max` a maximum, `tokens/sum` the count
by which core.update.reduce_stats divides every `…/mean`, so that nothing depends on how work was cut."""


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
    """Loss of one micro-batch, to be summed (not averaged) over micro-batches and ranks:

        loss = 1/(N·L) · Σ_c m_c · w_c · ℓ_c,    ℓ_c as in `clipped_surrogate`

    normaliser: N·L, fixed before the micro-batch loop. N counts the sequences of the update as
    configured (prompts × group size over all ranks). It does NOT shrink when rows are censored, fully
    masked or have advantage 0, so a step's scale never depends on the infrastructure's luck. L is the
    response limit in tokens. Twice L gives half the gradient; every token of every sequence has the
    same coefficient, which is the paper's change against GRPO (no 1/|o_i|, no standard deviation).

    Source: Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.
    """
    per_token_C = clipped_surrogate(
        policy_logprobs_C,
        old_logprobs_C,
        advantages_C,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    # Dr. GRPO: a sum over the tokens by a constant, where GRPO divides by each sequence's length.
    loss = (mask_C * weights_C * per_token_C).sum() / normaliser
    stats = surrogate_stats(
        policy_logprobs_C, old_logprobs_C, advantages_C, mask_C, clip_low=clip_low, clip_high=clip_high
    )
    return loss, {"loss/policy/sum": loss.detach(), **stats}


def clipped_surrogate(
    policy_logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Tensor:
    """PPO's pessimistic surrogate by token, with its two clip bounds decoupled:

        ρ = exp(policy − old),   ℓ = −min(ρ·A, clip(ρ, 1−low, 1+high)·A)

    dual_clip c (> 1, or None for none) also bounds the loss of negative advantages: ℓ ≤ −c·A for A < 0.

    Sources: Schulman et al., arXiv 1707.06347 (clip); DAPO, arXiv 2503.14476 (two bounds);
    Ye et al., arXiv 1912.09729 (dual clip).
    """
    ratio_C = torch.exp(policy_logprobs_C - old_logprobs_C)
    clipped_C = ratio_C.clamp(1 - clip_low, 1 + clip_high)
    loss_C = -torch.minimum(ratio_C * advantages_C, clipped_C * advantages_C)
    if dual_clip is None:
        return loss_C
    return torch.where(advantages_C < 0, torch.minimum(loss_C, -dual_clip * advantages_C), loss_C)


@torch.no_grad()
def surrogate_stats(
    policy_logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    mask_C: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Stats:
    """Clip fractions by side (tokens whose gradient the clip removed), k1 estimate of KL(old‖policy), ratio."""
    log_ratio_C = policy_logprobs_C - old_logprobs_C
    ratio_C = torch.exp(log_ratio_C)
    above_C = (ratio_C > 1 + clip_high) & (advantages_C > 0)
    below_C = (ratio_C < 1 - clip_low) & (advantages_C < 0)
    return {
        "tokens/sum": mask_C.sum(),
        "policy/clip_fraction_high/mean": (mask_C * above_C).sum(),
        "policy/clip_fraction_low/mean": (mask_C * below_C).sum(),
        "policy/kl_k1/mean": -(mask_C * log_ratio_C).sum(),
        "policy/ratio/max": torch.where(mask_C > 0, ratio_C, 0).max(),
    }
