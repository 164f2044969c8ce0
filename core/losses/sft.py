"""Supervised fine-tuning: the negative log-likelihood of demonstrations, averaged over all tokens of an update.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.drgrpo import Stats


def sft_loss(
    policy_logprobs_C: Tensor, mask_C: Tensor, weights_C: Tensor, *, normaliser: float
) -> tuple[Tensor, Stats]:
    """loss = −1/normaliser · Σ_c m_c · w_c · log π(token_c)

    normaliser: the number of unmasked completion tokens of the whole update, over all micro-batches and
    ranks (`packing.completion_tokens`), so that the mean is over tokens however the work was cut.
    """
    loss = -(mask_C * weights_C * policy_logprobs_C).sum() / normaliser
    nll = -(mask_C * policy_logprobs_C).sum().detach()
    return loss, {"loss/sft/sum": loss.detach(), "policy/nll/mean": nll, "tokens/sum": mask_C.sum()}
