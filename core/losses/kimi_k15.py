"""Kimi k1.5's policy optimisation: online mirror descent with whole-sequence log-probs.

Shapes: C completion tokens of a micro-batch, S its sequences.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import Stats, log_ratio, sequence_sum


def kimi_k15_loss(
    policy_logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    advantages_C: Tensor,
    mask_C: Tensor,
    weights_C: Tensor,
    sequence_C: Tensor,
    sequence_count: int,
    *,
    tau: float,
    normaliser: float,
) -> tuple[Tensor, Stats]:
    """This micro-batch's part of the update's loss; parts are summed over micro-batches and ranks:

        loss = −1/N · Σ_i w_i · [A_i · log π(y_i) − τ/2 · (log π(y_i)/π_old(y_i))²],   A_i = r_i − mean r

    log π(y_i) is the sum over the sequence's unmasked tokens: no clip, no ratio, no length division. The
    gradient is 1/(2τ) times that of the squared surrogate (A − τ·log π/π_old)². old_logprobs: of the policy
    at the start of the iteration, when the optimiser is also reset. normaliser: N, the sequences of the
    update over all ranks as configured.

    Source: Kimi k1.5, arXiv 2501.12599, eq. 3.
    """

    def sum_S(values_C: Tensor) -> Tensor:
        return sequence_sum(values_C, mask_C, sequence_C, sequence_count)

    lengths_S = sum_S(mask_C).clamp(min=1)
    advantages_S, weights_S = sum_S(advantages_C) / lengths_S, sum_S(weights_C) / lengths_S
    log_ratio_S = sum_S(log_ratio(policy_logprobs_C, old_logprobs_C, mask_C))
    logprobs_S = sum_S(policy_logprobs_C)
    ascent_S = advantages_S * logprobs_S - tau / 2 * log_ratio_S.square()
    loss = -(weights_S * ascent_S).sum() / normaliser
    stats = {
        "loss/policy/sum": loss.detach(),
        "tokens/sum": mask_C.sum(),
        "policy/kl_k1/mean": -log_ratio_S.detach().sum(),
        "policy/sequence_log_ratio/max": log_ratio_S.detach().abs().max(),
    }
    return loss, stats
