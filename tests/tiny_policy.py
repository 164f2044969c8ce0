"""A two-layer policy, random sequences and one update of every loss: what the trainer's tests share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from core.config import PolicyConfig
from core.losses.dapo import dapo_loss
from core.losses.drgrpo import drgrpo_loss
from core.losses.grpo import grpo_loss
from core.losses.gspo import gspo_loss
from core.losses.kimi_k15 import kimi_k15_loss
from core.losses.kl import entropy_loss, kl_loss
from core.losses.mismatch import masked_weights, sequence_mismatch, token_mismatch, truncated_weights
from core.losses.sft import sft_loss
from core.packing import MicroBatch, TrainSequence, completion_tokens, pack
from core.policy import Policy, load_policy, policy_logprobs

VOCABULARY = 61
TEMPERATURE = 0.7
LIMIT = 16  # L, the response limit


def write_model(folder: Path, *, tied: bool = True, vocabulary: int = VOCABULARY) -> Path:
    """A random Qwen3 in Hugging Face format, large enough weights that attention matters."""
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    return folder


def load_tiny(folder: Path, sharding: str = "none", dtype: str = "float64", **changes: Any) -> Policy:
    settings = {"attention": "packed", "cpu_offload": False, "activation_checkpointing": False}
    settings |= {"compile": False} | changes
    return load_policy(PolicyConfig(path=str(folder), dtype=dtype, sharding=sharding, **settings))


def random_sequences(count: int, seed: int = 0) -> list[TrainSequence]:
    """Uneven lengths, advantages of both signs and 0, one weight of 2 and (from 5 on) one masked row."""
    draw = random.Random(seed)
    sequences = []
    for number in range(count):
        prompt, completion = draw.randint(1, 6), draw.randint(1, LIMIT)
        ids = tuple(draw.randrange(VOCABULARY) for _ in range(prompt + completion))
        sequences.append(
            TrainSequence(
                token_ids=ids,
                prompt_length=prompt,
                advantage=(-0.5, 1.0, 0.0, 0.25)[number % 4],
                sampler_logprobs=tuple(-8 * draw.random() for _ in range(completion)),
                weight={1: 2.0, 4: 0.0}.get(number, 1.0),
            )
        )
    return sequences


BOUNDS = {"clip_low": 0.2, "clip_high": 0.3}


def _basics(policy_C: Tensor, batch: MicroBatch) -> tuple[Tensor, ...]:
    # "Old" log-probs near the policy's, so that some ratios are inside the clip range and some outside;
    # a function of the token alone, so that no cut of the batch can change them.
    old_C = policy_C.detach() + 0.4 * torch.sin(batch.sampler_logprobs_C * 5)
    return policy_C, old_C, batch.advantages_C, batch.mask_C, batch.weights_C


def _drgrpo(policy_C, entropy_C, batch, sequences, tokens):
    return drgrpo_loss(*_basics(policy_C, batch), **BOUNDS, dual_clip=None, normaliser=sequences * LIMIT)


def _dual(policy_C, entropy_C, batch, sequences, tokens):
    return drgrpo_loss(*_basics(policy_C, batch), **BOUNDS, dual_clip=1.2, normaliser=sequences * LIMIT)


def _dapo(policy_C, entropy_C, batch, sequences, tokens):
    return dapo_loss(*_basics(policy_C, batch), **BOUNDS, dual_clip=None, normaliser=tokens)


def _by_sequence(batch: MicroBatch) -> tuple[Tensor, int]:
    return batch.sequence_C, batch.sequence_count


def _grpo(policy_C, entropy_C, batch, sequences, tokens):
    by = _by_sequence(batch)
    return grpo_loss(*_basics(policy_C, batch), *by, **BOUNDS, dual_clip=None, normaliser=sequences)


def _gspo(policy_C, entropy_C, batch, sequences, tokens):
    return gspo_loss(*_basics(policy_C, batch), *_by_sequence(batch), **BOUNDS, normaliser=sequences)


def _kimi(policy_C, entropy_C, batch, sequences, tokens):
    return kimi_k15_loss(*_basics(policy_C, batch), *_by_sequence(batch), tau=0.3, normaliser=sequences)


def _regularised(estimator: str) -> Callable:
    def loss(policy_C, entropy_C, batch, sequences, tokens):
        reference_C = batch.sampler_logprobs_C
        shared = {"normaliser": sequences * LIMIT}
        mask_C, weights_C = batch.mask_C, batch.weights_C
        surrogate, stats = _drgrpo(policy_C, entropy_C, batch, sequences, tokens)
        kl, more = kl_loss(
            policy_C, reference_C, mask_C, weights_C, estimator=estimator, coefficient=0.1, **shared
        )
        bonus, rest = entropy_loss(entropy_C, mask_C, weights_C, coefficient=0.05, **shared)
        return surrogate + kl + bonus, stats | more | rest

    return loss


def _corrected(weigh: Callable[[Tensor, Tensor, MicroBatch], Tensor]) -> Callable:
    def loss(policy_C, entropy_C, batch, sequences, tokens):
        policy_C, old_C, advantages_C, mask_C, weights_C = _basics(policy_C, batch)
        sampler_C = old_C + 0.3 * torch.cos(batch.sampler_logprobs_C * 7)
        weights_C = weights_C * weigh(old_C, sampler_C, batch)
        bounds = BOUNDS | {"dual_clip": None, "normaliser": sequences * LIMIT}
        return drgrpo_loss(policy_C, old_C, advantages_C, mask_C, weights_C, **bounds)

    return loss


def _token(old_C: Tensor, sampler_C: Tensor, batch: MicroBatch) -> Tensor:
    return token_mismatch(old_C, sampler_C, batch.mask_C)


def _sequence(old_C: Tensor, sampler_C: Tensor, batch: MicroBatch) -> Tensor:
    return sequence_mismatch(old_C, sampler_C, batch.mask_C, *_by_sequence(batch))


def _sft(policy_C, entropy_C, batch, sequences, tokens):
    return sft_loss(policy_C, batch.mask_C, batch.weights_C, normaliser=tokens)


LOSSES: dict[str, Callable[..., tuple[Tensor, dict[str, Tensor]]]] = {
    "drgrpo": _drgrpo,
    "drgrpo dual clip": _dual,
    "grpo": _grpo,
    "dapo": _dapo,
    "gspo": _gspo,
    "kimi k1.5": _kimi,
    "drgrpo + k1 + entropy": _regularised("k1"),
    "drgrpo + k2 + entropy": _regularised("k2"),
    "drgrpo + k3 + entropy": _regularised("k3"),
    "token, truncated": _corrected(lambda *a: truncated_weights(_token(*a), cap=1.1)),
    "token, masked": _corrected(lambda *a: masked_weights(_token(*a), low=0.8, high=1.2)),
    "sequence, truncated": _corrected(lambda *a: truncated_weights(_sequence(*a), cap=1.1)),
    "sequence, masked": _corrected(lambda *a: masked_weights(_sequence(*a), low=0.5, high=2.0)),
    "sft": _sft,
}


def accumulate(
    policy: Policy,
    sequences: Sequence[TrainSequence],
    loss_name: str,
    *,
    token_budget: int,
    rank: int = 0,
    world_size: int = 1,
    count: int | None = None,
) -> list[dict[str, Tensor]]:
    """Forward and backward over this rank's micro-batches; their metrics. count: N, if not all rows."""
    tokens, stats = completion_tokens(sequences), []
    for batch in pack(
        sequences,
        token_budget=token_budget,
        rank=rank,
        world_size=world_size,
        device=policy.device,
        dtype=policy.logprob_dtype,
    ):
        logprobs_C, entropy_C = policy_logprobs(policy, batch, temperature=TEMPERATURE, entropy=True)
        loss, stat = LOSSES[loss_name](logprobs_C, entropy_C, batch, count or len(sequences), tokens)
        loss.backward()
        stats.append(stat)
    return stats


def take_gradients(policy: Policy) -> dict[str, Tensor]:
    """Whole gradients by name, dropped from the policy; collective under fsdp."""
    whole = {}
    for name, parameter in policy.causal_lm.named_parameters():
        assert parameter.grad is not None, name
        gradient = parameter.grad
        whole[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).clone()
        parameter.grad = None
    return whole


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Largest difference of two gradients, relative to the largest entry; `left` must not vanish."""
    assert left.keys() == right.keys()
    scale = max(float(x.abs().max()) for x in left.values())
    assert scale > 0
    assert math.isfinite(scale)
    return max(float((left[name] - right[name]).abs().max()) for name in left) / scale
