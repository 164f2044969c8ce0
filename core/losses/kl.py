"""Regularisers by token: KL to a reference policy by three estimators, and entropy.

Shapes: C completion tokens of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor

from core.losses.surrogate import Stats, log_ratio, masked_sum


def kl_estimate(log_r_C: Tensor, *, estimator: str) -> Tensor:
    """An estimate of KL(policy‖reference) by token from log r = log π_ref − log π of tokens the policy drew:

        k1 = −log r             unbiased, may be negative; as a loss its expected gradient is 0
        k2 = ½ (log r)²         biased, but its gradient is that of the KL
        k3 = r − 1 − log r      unbiased, never negative; its gradient is that of KL(reference‖policy)

    Sources: Schulman, Approximating KL Divergence, 2020; Tang and Munos, arXiv 2506.09477 (gradients).
    """
    if estimator == "k1":
        return -log_r_C
    if estimator == "k2":
        return log_r_C.square() / 2
    if estimator == "k3":
        return log_r_C.exp() - 1 - log_r_C
    raise ValueError(f"KL estimator {estimator!r}: expected k1, k2 or k3")


def kl_loss(
    policy_logprobs_C: Tensor,
    reference_logprobs_C: Tensor,
    mask_C: Tensor,
    weights_C: Tensor,
    *,
    estimator: str,
    coefficient: float,
    normaliser: float,
) -> tuple[Tensor, Stats]:
    """coefficient/normaliser · Σ_c m_c · w_c · k_c, to be added to the policy loss of the same micro-batch.

    normaliser: the policy loss's own (N·L for Dr. GRPO), so that the two keep their proportion.
    """
    log_r_C = log_ratio(reference_logprobs_C, policy_logprobs_C, mask_C)
    per_token_C = kl_estimate(log_r_C, estimator=estimator)
    loss = coefficient * masked_sum(per_token_C, mask_C, weights_C) / normaliser
    mean = masked_sum(per_token_C.detach(), mask_C, mask_C)
    return loss, {"loss/kl/sum": loss.detach(), f"policy/reference_kl_{estimator}/mean": mean}


def entropy_loss(
    entropy_C: Tensor, mask_C: Tensor, weights_C: Tensor, *, coefficient: float, normaliser: float
) -> tuple[Tensor, Stats]:
    """−coefficient/normaliser · Σ_c m_c · w_c · H_c: minimising it raises the policy's entropy.

    normaliser: the policy loss's own.
    """
    loss = -coefficient * masked_sum(entropy_C, mask_C, weights_C) / normaliser
    mean = masked_sum(entropy_C.detach(), mask_C, mask_C)
    return loss, {"loss/entropy/sum": loss.detach(), "policy/entropy/mean": mean}
