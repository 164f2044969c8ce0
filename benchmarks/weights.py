"""What a token of each sequence weighs in an update's gradient, by formula and by how the update was cut.

    python benchmarks/weights.py

Seconds on a CPU. 1 is the weight that the formula is meant to give every token. Dr. GRPO prints 1 everywhere,
and so does DAPO's global token mean; GRPO's weight falls with the length, by design, but the same in every
cut. The last two formulas are there to compare with: they divide each micro-batch by a number of its own and
average over micro-batches, so that a weight depends on which sequences happened to share a micro-batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from core.losses.dapo import dapo_loss
from core.losses.drgrpo import drgrpo_loss
from core.losses.grpo import grpo_loss
from core.packing import MicroBatch, TrainSequence, pack

PROMPT, LIMIT = 300, 8192
LENGTHS = (600, 8192, 1200, 5000, 700, 2500, 8192, 900)
CUTS = ((1, 70_000), (1, 8492), (2, 16_384), (2, 8492), (4, 12_000))  # ranks, token budget of a micro-batch
SEQUENCES, TOKENS = len(LENGTHS), sum(LENGTHS)
NO_CLIP = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": None}


def basics(logprobs_C: Tensor, batch: MicroBatch) -> tuple[Tensor, ...]:
    return logprobs_C, logprobs_C.detach(), batch.advantages_C, batch.mask_C, batch.weights_C


def drgrpo(logprobs_C: Tensor, batch: MicroBatch, parts: int) -> Tensor:
    return drgrpo_loss(*basics(logprobs_C, batch), **NO_CLIP, normaliser=SEQUENCES * LIMIT)[0]


def dapo(logprobs_C: Tensor, batch: MicroBatch, parts: int) -> Tensor:
    return dapo_loss(*basics(logprobs_C, batch), **NO_CLIP, normaliser=TOKENS)[0]


def grpo(logprobs_C: Tensor, batch: MicroBatch, parts: int) -> Tensor:
    by_sequence = (batch.sequence_C, batch.sequence_count)
    return grpo_loss(*basics(logprobs_C, batch), *by_sequence, **NO_CLIP, normaliser=SEQUENCES)[0]


def own_rows(logprobs_C: Tensor, batch: MicroBatch, parts: int) -> Tensor:
    rows = max(len(batch.indices), 1)
    return drgrpo_loss(*basics(logprobs_C, batch), **NO_CLIP, normaliser=rows * LIMIT * parts)[0]


def own_tokens(logprobs_C: Tensor, batch: MicroBatch, parts: int) -> Tensor:
    tokens = max(float(batch.mask_C.sum()), 1.0)
    return drgrpo_loss(*basics(logprobs_C, batch), **NO_CLIP, normaliser=tokens * parts)[0]


FORMULAS: dict[str, tuple[Callable[[Tensor, MicroBatch, int], Tensor], float]] = {
    "Dr. GRPO: 1/(N·L)": (drgrpo, SEQUENCES * LIMIT),
    "DAPO: 1/(all tokens)": (dapo, TOKENS),
    "GRPO: 1/(N·length)": (grpo, TOKENS),
    "mean of Σ/(own rows·L)": (own_rows, SEQUENCES * LIMIT),
    "mean of Σ/(own tokens)": (own_tokens, TOKENS),
}
"""Name: the formula, and the constant that makes its intended mean weight 1."""


def weights(formula: str, ranks: int, budget: int) -> list[float]:
    """constant · −∂loss/∂logprob of each sequence's tokens, which must be the same for all of them."""
    function, constant = FORMULAS[formula]
    sequences = [TrainSequence((1,) * (PROMPT + size), PROMPT, 1.0, (), 1.0) for size in LENGTHS]
    cut = {"token_budget": budget, "world_size": ranks, "device": torch.device("cpu"), "dtype": torch.float64}
    by_rank = [pack(sequences, rank=rank, **cut) for rank in range(ranks)]
    found = {}
    for batch in (batch for batches in by_rank for batch in batches):
        logprobs_C = torch.zeros_like(batch.mask_C, requires_grad=True)
        function(logprobs_C, batch, ranks * len(by_rank[0])).backward()
        assert logprobs_C.grad is not None
        for number, index in enumerate(batch.indices):
            weights_C = -constant * logprobs_C.grad[batch.sequence_C == number]
            assert (weights_C - weights_C[0]).abs().max() < 1e-12
            found[index] = float(weights_C[0])
    return [found[index] for index in range(SEQUENCES)]


def main() -> None:
    print(f"{'completion tokens':<24}{'ranks':>6}{'budget':>8}  " + " ".join(f"{n:>6,}" for n in LENGTHS))
    for formula in FORMULAS:
        for ranks, budget in CUTS:
            row = " ".join(f"{weight:6.3f}" for weight in weights(formula, ranks, budget))
            print(f"{formula:<24}{ranks:>6}{budget:>8,}  {row}")


if __name__ == "__main__":
    main()
