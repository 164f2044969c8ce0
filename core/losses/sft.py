"""Supervised fine-tuning: the negative log-likelihood of demonstrations, averaged over an update's tokens.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import Stats, masked_sum


def sft_loss(
    policy_logprobs_C: Tensor, mask_C: Tensor, weights_C: Tensor, *, normaliser: float
) -> tuple[Tensor, Stats]:
    """This micro-batch's part of the update's loss; parts are summed over micro-batches and ranks:

        loss = −1/n · Σ_c m_c · w_c · log π(token_c)

    normaliser: n, the unmasked completion tokens of the whole update over all ranks
    (`packing.completion_tokens`), so that the mean is over tokens however the work was cut.
    """
    loss = -masked_sum(policy_logprobs_C, mask_C, weights_C) / normaliser
    nll = -masked_sum(policy_logprobs_C.detach(), mask_C, mask_C)
    return loss, {"loss/sft/sum": loss.detach(), "policy/nll/mean": nll, "tokens/sum": mask_C.sum()}
