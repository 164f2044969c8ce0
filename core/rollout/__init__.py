"""Rollouts: what is asked of a sampling engine and what comes back. Engines stand beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from core.problems import Problem

if TYPE_CHECKING:
    from core.config import Config
    from core.run import Run


@dataclass(frozen=True)
class RolloutRequest:
    """One completion to sample: token ids in, so nothing is ever re-tokenised.

    `seed_key` names the sample's random stream, for example ("train", 12, "and_comm_1", 0, 3); the sampled
    tokens depend on it, the run's seed and the weights, and on nothing else (not on the batch or the rank).
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    group: str
    """Explicit id of the group whose mean reward is the baseline."""
    turn: int
    """0: a fresh attempt; 1: an error-fix attempt."""
    seed_key: tuple[str | int, ...]


@dataclass(frozen=True)
class Rollout:
    """A sampled completion, as the engine returns it."""

    request: RolloutRequest
    completion_ids: tuple[int, ...]
    """Sampled ids; ends with an end-of-sequence id if and only if finish_reason is "stop"."""
    sampler_logprobs: tuple[float, ...]
    """log π(token) under the engine at the sampling temperature, one per completion id (nats)."""
    finish_reason: str
    """"stop" or "length"."""
    text: str
    """The completion decoded without special tokens."""


class RolloutEngine(Protocol):
    """Samples completions from the current policy."""

    def update_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Take over the trainer's full (unsharded) parameters by name."""
        ...

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        max_new_tokens: int,
        temperature: float,
        top_p: float,
    ) -> Iterator[Rollout]:
        """Sample each request once; rollouts are yielded as they finish, in any order."""
        ...

    def close(self) -> None: ...


def make_engine(
    config: Config, model_config: Any, tokenizer: Any, eos_ids: Sequence[int], run: Run
) -> RolloutEngine:
    """The engine that `rollout.engine` names, on this rank's device."""
    assert config.rollout.engine == "transformers", "vLLM comes beside it"
    from core.rollout.transformers_engine import TransformersEngine

    return TransformersEngine(
        model_config,
        tokenizer,
        eos_ids,
        dtype=getattr(torch, config.policy.dtype),
        device=run.device,
        seed=config.run.seed,
        max_rows=config.rollout.max_rows,
    )
