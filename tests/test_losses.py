"""Every loss against a slow double loop and hand-worked numbers, and the properties each one claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.losses.dapo import dapo_loss
from core.losses.drgrpo import drgrpo_loss
from core.losses.grpo import grpo_loss
from core.losses.gspo import gspo_loss
from core.losses.kimi_k15 import kimi_k15_loss
from core.losses.kl import entropy_loss, kl_estimate, kl_loss
from core.losses.mismatch import (
    masked_weights,
    mismatch_stats,
    sequence_mismatch,
    stale_weights,
    token_mismatch,
    truncated_weights,
)
from core.losses.sft import sft_loss
from core.losses.surrogate import clipped_surrogate

D = torch.float64
BOUNDS = {"clip_low": 0.2, "clip_high": 0.3}


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


class Example:
    """Random ragged sequences as flat tensors, and as lists of lists for the slow loops."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.lengths = draw.integers(1, 7, size=int(draw.integers(2, 6)))
        self.sequence_C = torch.tensor(np.repeat(np.arange(len(self.lengths)), self.lengths))
        size = len(self.sequence_C)
        self.policy_C = tensor(-3 * draw.random(size)).requires_grad_()
        self.old_C = self.policy_C.detach() + tensor(0.4 * draw.standard_normal(size))
        self.advantages_C = tensor(draw.standard_normal(len(self.lengths)))[self.sequence_C]
        self.weights_C = tensor(draw.uniform(0.5, 2, len(self.lengths)))[self.sequence_C]
        self.mask_C = tensor(draw.integers(0, 2, size).astype(float))

    @property
    def flat(self) -> tuple[torch.Tensor, ...]:
        return self.policy_C, self.old_C, self.advantages_C, self.mask_C, self.weights_C

    @property
    def by_sequence(self) -> tuple[torch.Tensor, int]:
        return self.sequence_C, len(self.lengths)

    def rows(self):
        """For each sequence its tokens as (policy, old, advantage, mask, weight)."""
        columns = zip(*(x.tolist() for x in self.flat), strict=True)
        tokens = list(zip(self.sequence_C.tolist(), columns, strict=True))
        return [[token for s, token in tokens if s == number] for number in range(len(self.lengths))]


def slow_surrogate(ratio: float, advantage: float, dual: float | None = None) -> float:
    clipped = min(max(ratio, 0.8), 1.3)
    loss = -min(ratio * advantage, clipped * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


seeds = given(st.integers(0, 10**6))
few = settings(max_examples=25, deadline=None)


@few
@seeds
def test_drgrpo_and_dapo_equal_a_double_loop(seed):
    example = Example(seed)
    for dual in (None, 1.5):
        total = 0.0
        for row in example.rows():
            for policy, old, advantage, mask, weight in row:
                total += mask * weight * slow_surrogate(math.exp(policy - old), advantage, dual)
        loss, _ = drgrpo_loss(*example.flat, **BOUNDS, dual_clip=dual, normaliser=6 * 20)
        assert float(loss) == pytest.approx(total / (6 * 20), abs=1e-14)
        tokens = float(example.mask_C.sum()) or 1.0
        loss, _ = dapo_loss(*example.flat, **BOUNDS, dual_clip=dual, normaliser=tokens)
        assert float(loss) == pytest.approx(total / tokens, abs=1e-14)


@few
@seeds
def test_the_surrogates_metrics_equal_a_double_loop(seed):
    example = Example(seed)
    high = low = dual = log_ratios = largest = 0.0
    for row in example.rows():
        for policy, old, advantage, mask, _ in row:
            ratio = math.exp(policy - old)
            high += mask * (advantage > 0 and ratio > 1.3)
            low += mask * (advantage < 0 and ratio < 0.8)
            dual += mask * (advantage < 0 and ratio > 1.5)
            log_ratios += mask * (policy - old)
            largest = max(largest, mask * ratio)
    _, stats = drgrpo_loss(*example.flat, **BOUNDS, dual_clip=1.5, normaliser=7)
    assert float(stats["policy/clip_fraction_high/mean"]) == high
    assert float(stats["policy/clip_fraction_low/mean"]) == low
    assert float(stats["policy/clip_fraction_dual/mean"]) == dual
    assert float(stats["policy/kl_k1/mean"]) == pytest.approx(-log_ratios, abs=1e-13)
    assert float(stats["policy/ratio/max"]) == pytest.approx(largest)
    assert float(stats["tokens/sum"]) == float(example.mask_C.sum())


@few
@seeds
def test_grpo_equals_a_double_loop(seed):
    example, total = Example(seed), 0.0
    for row in example.rows():
        length = sum(mask for *_, mask, _ in row)
        for policy, old, advantage, mask, weight in row:
            if mask:
                total += weight * slow_surrogate(math.exp(policy - old), advantage) / length
    loss, _ = grpo_loss(*example.flat, *example.by_sequence, **BOUNDS, dual_clip=None, normaliser=7)
    assert float(loss) == pytest.approx(total / 7, abs=1e-14)


@few
@seeds
def test_gspo_and_kimi_equal_a_double_loop(seed):
    example, gspo, kimi = Example(seed), 0.0, 0.0
    for row in example.rows():
        kept = [token for token in row if token[3]]
        if not kept:
            continue
        advantage, weight = kept[0][2], kept[0][4]
        log_ratio = sum(policy - old for policy, old, *_ in kept)
        gspo += weight * slow_surrogate(math.exp(log_ratio / len(kept)), advantage)
        kimi -= weight * (advantage * sum(token[0] for token in kept) - 0.4 / 2 * log_ratio**2)
    loss, _ = gspo_loss(*example.flat, *example.by_sequence, **BOUNDS, normaliser=7)
    assert float(loss) == pytest.approx(gspo / 7, abs=1e-13)
    loss, _ = kimi_k15_loss(*example.flat, *example.by_sequence, tau=0.4, normaliser=7)
    assert float(loss) == pytest.approx(kimi / 7, abs=1e-13)


@few
@seeds
def test_regularisers_and_sft_equal_a_double_loop(seed):
    example = Example(seed)
    slow = {"k1": 0.0, "k2": 0.0, "k3": 0.0, "entropy": 0.0, "sft": 0.0}
    for row in example.rows():
        for policy, reference, entropy, mask, weight in row:
            log_r = reference - policy
            slow["k1"] += mask * weight * -log_r
            slow["k2"] += mask * weight * log_r**2 / 2
            slow["k3"] += mask * weight * (math.exp(log_r) - 1 - log_r)
            slow["entropy"] += mask * weight * entropy
            slow["sft"] -= mask * weight * policy
    policy_C, reference_C, entropy_C, mask_C, weights_C = example.flat
    kept = [token for row in example.rows() for token in row if token[3]]
    for estimator in ("k1", "k2", "k3"):
        loss, stats = kl_loss(
            policy_C, reference_C, mask_C, weights_C, estimator=estimator, coefficient=0.1, normaliser=40
        )
        assert float(loss) == pytest.approx(0.1 * slow[estimator] / 40, abs=1e-14)
    # Metrics are of the policy: they know no loss's weights.
    k3 = sum(math.exp(reference - policy) - 1 - (reference - policy) for policy, reference, *_ in kept)
    assert float(stats["policy/reference_kl_k3/mean"]) == pytest.approx(k3, abs=1e-13)
    loss, stats = entropy_loss(entropy_C, mask_C, weights_C, coefficient=0.2, normaliser=40)
    assert float(loss) == pytest.approx(-0.2 * slow["entropy"] / 40, abs=1e-14)
    assert float(stats["policy/entropy/mean"]) == pytest.approx(sum(token[2] for token in kept), abs=1e-13)
    loss, _ = sft_loss(policy_C, mask_C, weights_C, normaliser=40)
    assert float(loss) == pytest.approx(slow["sft"] / 40, abs=1e-14)


# Two sequences of 2 and 3 tokens, A = +1 and −1, ratios (1.5, 1) and (0.5, 1, 2); bounds 0.8 and 1.3.
# ℓ of the first: −min(1.5, 1.3) = −1.3, −1. Of the second: max(0.5, 0.8) = 0.8, 1, 2.
RATIOS = tensor([1.5, 1.0, 0.5, 1.0, 2.0])
SECOND = (torch.zeros(5, dtype=D), tensor([1.0, 1, -1, -1, -1]), torch.ones(5, dtype=D))
WHICH = (torch.tensor([0, 0, 1, 1, 1]), 2)


def worked(loss_function, *by_sequence, **settings):
    old_C, advantages_C, ones_C = SECOND
    loss, stats = loss_function(RATIOS.log(), old_C, advantages_C, ones_C, ones_C, *by_sequence, **settings)
    return float(loss), stats


def test_hand_worked_two_by_three():
    # Σ = −1.3 − 1 + 0.8 + 1 + 2 = 1.5; N·L = 2·3; n = 5 tokens.
    loss, stats = worked(drgrpo_loss, **BOUNDS, dual_clip=None, normaliser=6)
    assert loss == pytest.approx(1.5 / 6)
    assert float(stats["policy/clip_fraction_high/mean"]) == 1  # the token of ratio 1.5 with A > 0
    assert float(stats["policy/clip_fraction_low/mean"]) == 1  # the token of ratio 0.5 with A < 0
    assert float(stats["policy/ratio/max"]) == pytest.approx(2)
    # KL(old‖policy) by k1: −Σ log ρ = −(log 1.5 + log 0.5 + log 2).
    assert float(stats["policy/kl_k1/mean"]) == pytest.approx(-math.log(1.5))
    assert float(stats["tokens/sum"]) == 5
    # A dual clip of 1.6 bounds the last token: 2 → 1.6.
    loss, stats = worked(drgrpo_loss, **BOUNDS, dual_clip=1.6, normaliser=6)
    assert loss == pytest.approx(1.1 / 6)
    assert float(stats["policy/clip_fraction_dual/mean"]) == 1
    assert worked(dapo_loss, **BOUNDS, dual_clip=None, normaliser=5)[0] == pytest.approx(0.3)
    # GRPO: (−2.3/2 + 3.8/3)/2 = 7/120.
    assert worked(grpo_loss, *WHICH, **BOUNDS, dual_clip=None, normaliser=2)[0] == pytest.approx(7 / 120)
    # GSPO: s = √1.5 = 1.2247 (inside) and ∛(0.5·1·2) = 1: (−1.2247 + 1)/2.
    assert worked(gspo_loss, *WHICH, **BOUNDS, normaliser=2)[0] == pytest.approx((1 - 1.5**0.5) / 2)
    # Kimi: log π = log ρ here: log 1.5 = 0.405465 and log 1 = 0; −[0.405465 − ½·0.5·0.405465²]/2.
    expected = -(math.log(1.5) - 0.25 * math.log(1.5) ** 2) / 2
    loss, stats = worked(kimi_k15_loss, *WHICH, tau=0.5, normaliser=2)
    assert loss == pytest.approx(expected)
    assert float(stats["policy/kl_k1/mean"]) == pytest.approx(-math.log(1.5))
    assert float(stats["policy/sequence_log_ratio/max"]) == pytest.approx(math.log(1.5))


@pytest.mark.parametrize(
    ("advantage", "ratio", "slope"),
    [
        # A > 0: pushed up until the ratio is above 1.3. A < 0: pushed down until it is below 0.8.
        (1.0, 0.5, -1.0), (1.0, 1.0, -1.0), (1.0, 1.29, -1.0), (1.0, 1.31, 0.0), (1.0, 5.0, 0.0),
        (-1.0, 0.5, 0.0), (-1.0, 0.79, 0.0), (-1.0, 0.81, 1.0), (-1.0, 1.0, 1.0), (-1.0, 5.0, 1.0),
        (0.0, 0.5, 0.0), (0.0, 1.0, 0.0), (0.0, 2.0, 0.0),
    ],
)  # fmt: skip
def test_clip_table(advantage, ratio, slope):
    """dℓ/d log ρ = −A·ρ where the bound does not bind, else 0."""
    log_ratio_C = tensor([ratio]).log().requires_grad_()
    loss_C = clipped_surrogate(log_ratio_C, tensor([advantage]), **BOUNDS, dual_clip=None)
    (gradient_C,) = torch.autograd.grad(loss_C.sum(), log_ratio_C)
    assert float(gradient_C) == pytest.approx(slope * ratio)


def test_the_dual_clip_removes_the_gradient_of_large_ratios_with_negative_advantage():
    log_ratio_C = tensor([2.9, 3.1]).log().requires_grad_()
    loss_C = clipped_surrogate(log_ratio_C, tensor([-1.0, -1.0]), **BOUNDS, dual_clip=3.0)
    (gradient_C,) = torch.autograd.grad(loss_C.sum(), log_ratio_C)
    assert gradient_C.tolist() == pytest.approx([2.9, 0.0])
    assert loss_C.tolist() == pytest.approx([2.9, 3.0])


@few
@seeds
def test_on_policy_drgrpo_is_reinforce(seed):
    """At ρ = 1: loss −Σ A_i·|o_i| / (N·L), gradient −A/(N·L) for every token."""
    example = Example(seed)
    ones_C = torch.ones_like(example.mask_C)
    policy_C, _, advantages_C, _, _ = example.flat
    loss, _ = drgrpo_loss(
        policy_C, policy_C.detach(), advantages_C, ones_C, ones_C, **BOUNDS, dual_clip=None, normaliser=60
    )
    assert float(loss) == pytest.approx(-float(advantages_C.sum()) / 60, abs=1e-14)
    (gradient_C,) = torch.autograd.grad(loss, policy_C)
    torch.testing.assert_close(gradient_C, -advantages_C / 60, rtol=1e-12, atol=0)


def coefficients(loss_function, *extra, lengths=(1, 3, 8), **settings) -> list[set[float]]:
    """Distinct values, by sequence, of −∂loss/∂logprob at ρ = 1 and A = 1."""
    sequence_C = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    policy_C = torch.zeros(sum(lengths), dtype=D, requires_grad=True)
    ones_C = torch.ones_like(policy_C)
    by_sequence = (sequence_C, len(lengths)) if extra else ()
    loss, _ = loss_function(policy_C, policy_C.detach(), ones_C, ones_C, ones_C, *by_sequence, **settings)
    (gradient_C,) = torch.autograd.grad(loss, policy_C)
    rounded = (-gradient_C).numpy().round(15)
    return [set(rounded[sequence_C == number].tolist()) for number in range(len(lengths))]


def test_every_token_weighs_the_same_in_drgrpo_dapo_and_kimi_but_not_in_grpo_and_gspo():
    surrogate = BOUNDS | {"dual_clip": None}
    assert coefficients(drgrpo_loss, **surrogate, normaliser=24) == [{round(1 / 24, 15)}] * 3
    assert coefficients(dapo_loss, **surrogate, normaliser=12) == [{round(1 / 12, 15)}] * 3
    assert coefficients(kimi_k15_loss, "ids", tau=0.5, normaliser=3) == [{round(1 / 3, 15)}] * 3
    by_length = [{round(1 / (3 * length), 15)} for length in (1, 3, 8)]
    assert coefficients(grpo_loss, "ids", **surrogate, normaliser=3) == by_length
    assert coefficients(gspo_loss, "ids", **BOUNDS, normaliser=3) == by_length


@few
@seeds
def test_twice_the_limit_gives_exactly_half_and_a_masked_row_changes_nothing(seed):
    example = Example(seed)
    settings = BOUNDS | {"dual_clip": None}
    single, _ = drgrpo_loss(*example.flat, **settings, normaliser=8 * 16)
    double, _ = drgrpo_loss(*example.flat, **settings, normaliser=8 * 32)
    assert float(double) == float(single) / 2
    more = [torch.cat([x, torch.full((3,), math.nan, dtype=D)]) for x in example.flat]
    more[3] = torch.cat([example.mask_C, torch.zeros(3, dtype=D)])
    sequence_C = torch.cat([example.sequence_C, torch.full((3,), len(example.lengths))])
    by_sequence = (sequence_C, len(example.lengths) + 1)
    for function, extra, kind in (
        (drgrpo_loss, False, settings),
        (dapo_loss, False, settings),
        (grpo_loss, True, settings),
        (gspo_loss, True, BOUNDS),
        (kimi_k15_loss, True, {"tau": 0.3}),
    ):
        with_row, stats = function(*more, *(by_sequence if extra else ()), **kind, normaliser=8)
        without, _ = function(*example.flat, *(example.by_sequence if extra else ()), **kind, normaliser=8)
        assert float(with_row) == pytest.approx(float(without), abs=1e-14)
        (left_C,) = torch.autograd.grad(with_row, example.policy_C)
        (right_C,) = torch.autograd.grad(without, example.policy_C)
        torch.testing.assert_close(left_C, right_C, rtol=0, atol=1e-14)
        assert all(math.isfinite(float(value)) for value in stats.values())


@few
@seeds
def test_kimi_gradient_is_that_of_the_squared_surrogate(seed):
    """∇loss = 1/(2τ) ∇ Σ_i w_i (A_i − τ log π/π_old)² / N, one sequence at a time."""
    example, tau = Example(seed), 0.7
    loss, _ = kimi_k15_loss(*example.flat, *example.by_sequence, tau=tau, normaliser=5)
    (gradient_C,) = torch.autograd.grad(loss, example.policy_C)
    squared = torch.zeros((), dtype=D)
    for number in range(len(example.lengths)):
        kept_C = (example.sequence_C == number) & (example.mask_C > 0)
        if kept_C.any():
            log_ratio = (example.policy_C - example.old_C)[kept_C].sum()
            advantage, weight = example.advantages_C[kept_C][0], example.weights_C[kept_C][0]
            squared = squared + weight * (advantage - tau * log_ratio) ** 2
    (expected_C,) = torch.autograd.grad(
        squared / (2 * tau * 5) + 0 * example.policy_C.sum(), example.policy_C
    )
    torch.testing.assert_close(gradient_C, expected_C, rtol=1e-10, atol=1e-14)


def test_kl_estimators_in_expectation():
    """Over a whole distribution: E k1 = E k3 = KL, and E ∇k2 = ∇KL while E ∇k1 = 0."""
    torch.manual_seed(0)
    logits_V = torch.randn(6, dtype=D, requires_grad=True)
    reference_V = torch.log_softmax(torch.randn(6, dtype=D), 0)
    policy_V = torch.log_softmax(logits_V, 0)
    kl = (policy_V.exp() * (policy_V - reference_V)).sum()
    (kl_gradient_V,) = torch.autograd.grad(kl, logits_V, retain_graph=True)
    draws_V = policy_V.exp().detach()
    gradients = {}
    for estimator in ("k1", "k2", "k3"):
        expected = (draws_V * kl_estimate(reference_V - policy_V, estimator=estimator)).sum()
        if estimator != "k2":
            assert float(expected) == pytest.approx(float(kl))
        (gradients[estimator],) = torch.autograd.grad(expected, logits_V, retain_graph=True)
    torch.testing.assert_close(gradients["k2"], kl_gradient_V)
    torch.testing.assert_close(gradients["k1"], torch.zeros_like(kl_gradient_V), rtol=0, atol=1e-12)
    assert (kl_estimate(torch.linspace(-2, 2, 9), estimator="k3") >= 0).all()
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        kl_estimate(logits_V, estimator="k4")


def test_importance_corrections_by_hand():
    # Two sequences; old/sampler ratios 2, 0.5 and 3, 1, and one masked token that holds NaN.
    old_C = tensor([2.0, 0.5, 3.0, 1.0, math.nan]).log()
    sampler_C = torch.zeros(5, dtype=D)
    mask_C, sequence_C = tensor([1.0, 1, 1, 1, 0]), torch.tensor([0, 0, 1, 1, 1])
    by_token_C = token_mismatch(old_C, sampler_C, mask_C)
    by_sequence_C = sequence_mismatch(old_C, sampler_C, mask_C, sequence_C, 2)
    assert truncated_weights(by_token_C, cap=1.5).tolist() == pytest.approx([1.5, 0.5, 1.5, 1, 1])
    assert masked_weights(by_token_C, low=0.6, high=2.5).tolist() == pytest.approx([2, 0, 0, 1, 1])
    assert truncated_weights(by_sequence_C, cap=1.5).tolist() == pytest.approx([1, 1, 1.5, 1.5, 1.5])
    assert masked_weights(by_sequence_C, low=0.4, high=2.5).tolist() == pytest.approx([1, 1, 0, 0, 0])
    stats = mismatch_stats(old_C, sampler_C, mask_C, torch.tensor([0, 1, 0, 1, 2]), limit=2)
    assert float(stats["rollout/logprob_gap/max"]) == pytest.approx(math.log(3))
    assert float(stats["rollout/logprob_gap/mean"]) == pytest.approx(2 * math.log(2) + math.log(3))
    # Σ (r − 1 − log r) = 1 − log 2 − 0.5 + log 2 + 2 − log 3 + 0.
    assert float(stats["rollout/kl_k3/mean"]) == pytest.approx(2.5 - math.log(3))
    # Of a limit of 2, place 0 is the first quarter and place 1 the third.
    by_quarter = {name[-14:]: float(value) for name, value in stats.items() if "quarter" in name}
    assert by_quarter["quarter_1/mean"] == pytest.approx(math.log(2) + math.log(3))
    assert by_quarter["quarter_3/mean"] == pytest.approx(math.log(2))
    assert [stats[f"rollout/logprob_gap/quarter_{n}/count"] for n in (1, 2, 3, 4)] == [2, 0, 2, 0]


def test_an_older_policys_tokens_are_weighted_or_masked_and_the_policys_own_left_alone():
    # old/sampler ratios 4, 0.5, 4 and an absent sampler; the first two are an older policy's.
    old_C, stale_C = tensor([4.0, 0.5, 4.0, 1.0]).log(), tensor([1.0, 1, 0, 0])
    sampler_C = tensor([0.0, 0, 0, math.nan])
    assert stale_weights(old_C, sampler_C, stale_C, cap=2.0).tolist() == pytest.approx([2, 0.5, 1, 1])
    assert stale_weights(old_C, sampler_C, stale_C, cap=0.0).tolist() == [0, 0, 1, 1]
