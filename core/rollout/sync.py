"""Hands the policy's weights to the sampling engine, and proves that it samples from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.errors import UserError
from core.packing import TrainSequence, pack
from core.policy import full_parameters, policy_logprobs
from core.problems import Problem
from core.rollout import RolloutEngine, RolloutRequest

if TYPE_CHECKING:
    from core.config import Config
    from core.policy import Policy
    from core.run import Run

PROMPT_TOKENS, NEW_TOKENS = 32, 64  # of the proof's fixed prompt and of what is sampled behind it
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightSync:
    """The policy's weights in the engine, with a proof before the first rollout of every process and every
    `rollout.check_every` steps: each layer's checksum is the trainer's, and the log-probs of tokens that the
    engine samples after a fixed prompt are the trainer's within `rollout.max_logprob_gap`."""

    def __init__(self, engine: RolloutEngine, policy: Policy, config: Config, run: Run) -> None:
        self._engine, self._policy, self._settings, self._run = engine, policy, config.rollout, run
        self._proved = False

    def update(self, step: int) -> None:
        """Give the engine the policy as it is now; UserError if a proof is due and fails on any rank."""
        self._engine.update_weights(full_parameters(self._policy))
        every = self._settings.check_every
        if not self._proved or (every and step % every == 0):
            self.prove()
            self._proved = True

    def prove(self) -> None:
        """Raise UserError, on every rank, unless every rank's engine agrees with the policy."""
        found = self._engine.checksums()
        mine = layer_checksums(
            (name, value.to(self._engine.dtype)) for name, value in full_parameters(self._policy)
        )
        differing = [layer for layer, value in mine.items() if found.get(layer) != value] if found else []
        gap = self._logprob_gap()
        problems = []
        for rank, (layers, nats) in enumerate(self._run.gather([(differing, gap)])):
            if layers or not nats <= self._settings.max_logprob_gap:
                where = f"{', '.join(layers[:3])} differ" if layers else "every layer's checksum agrees"
                problems.append(f"rank {rank}: log-probs {nats:.2g} nats apart, {where}")
        if problems:
            raise UserError(
                "the sampling engine does not sample from the policy, so nothing may be learnt from it: "
                f"{problems[0]}; at most rollout.max_logprob_gap={self._settings.max_logprob_gap:g} nats "
                "may lie between them"
            )

    @torch.no_grad()
    def _logprob_gap(self) -> float:
        """Largest |engine − trainer| of the sampled tokens' log-probs."""
        shape, temperature = self._policy.causal_lm.config, self._settings.temperature
        new = min(NEW_TOKENS, self._settings.max_new_tokens, shape.max_position_embeddings // 2)
        length = min(PROMPT_TOKENS, shape.max_position_embeddings - new)
        prompt = tuple(np.random.default_rng(0).integers(shape.vocab_size, size=length).tolist())
        request = RolloutRequest(Problem("proof of sync", "", "", "", ""), prompt, "", 0, ("sync",))
        (rollout,) = self._engine.generate([request], new, temperature, 1.0)
        sequence = TrainSequence(
            (*prompt, *rollout.completion_ids), length, 0.0, rollout.sampler_logprobs, weight=1.0
        )
        (batch,) = pack(
            [sequence],
            token_budget=length + new,
            rank=0,
            world_size=1,
            device=self._policy.device,
            dtype=self._policy.logprob_dtype,
        )
        logprobs_C, _ = policy_logprobs(self._policy, batch, temperature=temperature, entropy=False)
        return float((logprobs_C - batch.sampler_logprobs_C).abs().max())


def layer_checksums(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """Sum of the bit patterns of all weights of a layer: "layers.3", "embed_tokens", "norm" or "lm_head".

    Exact, and blind to order: engines fuse and reorder a layer's matrices.
    """
    sums: dict[str, int] = {}
    for name, value in parameters:
        layer = re.search(r"layers\.\d+", name)
        key = layer[0] if layer else name.removesuffix(".weight").split(".")[-1]
        bits = value.detach().contiguous().view(_BITS[value.element_size()])
        sums[key] = (sums.get(key, 0) + int(bits.sum(dtype=torch.int64))) % 2**64
    return sums
