"""Rollouts: what is asked of a sampling engine and what comes back. Engines stand beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from core.errors import UserError
from core.problems import Problem

if TYPE_CHECKING:
    from core.config import Config
    from core.run import Run

FinishReason = Literal["stop", "length", "loop", "paused"]


@dataclass(frozen=True)
class Segment:
    """A stretch of a completion that one version of the policy sampled.

    >>> Segment(version=12, token_ids=(5, 8), sampler_logprobs=(-0.3, -1.2)).version
    12
    """

    version: int
    """The step whose weights sampled it."""
    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]


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
    begun: tuple[Segment, ...] = ()
    """What earlier steps sampled of the completion; it goes on behind them."""
    share: int | None = None
    """Tokens to sample now, at most: what is unfinished then comes back "paused". None: to the end."""

    @property
    def context_ids(self) -> tuple[int, ...]:
        """What the policy reads before it samples the next token."""
        return self.prompt_ids + self.begun_ids

    @property
    def begun_ids(self) -> tuple[int, ...]:
        return tuple(token for segment in self.begun for token in segment.token_ids)

    @property
    def begun_logprobs(self) -> tuple[float, ...]:
        return tuple(value for segment in self.begun for value in segment.sampler_logprobs)


@dataclass(frozen=True)
class Rollout:
    """A sampled completion, as the engine returns it."""

    request: RolloutRequest
    completion_ids: tuple[int, ...]
    """All sampled ids, those of `request.begun` first."""
    sampler_logprobs: tuple[float, ...]
    """log π(token) under the engine at the sampling temperature, one per completion id (nats)."""
    finish_reason: FinishReason
    """"stop": the last id ends the turn or completes a stop text; "length": the response limit; "loop": it
    ended in copies of one piece; "paused": the request's share is used up."""
    text: str
    """The completion decoded without special tokens."""


class RolloutEngine(Protocol):
    """Samples completions from the current policy."""

    dtype: torch.dtype
    """Of its weights."""

    def update_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Take over the trainer's full (unsharded) parameters by name; consumes all of them."""
        ...

    def checksums(self) -> dict[str, int]:
        """`core.rollout.sync.layer_checksums` of the weights that it samples with."""
        ...

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        max_new_tokens: int,
        temperature: float,
        top_p: float,
    ) -> Iterator[Rollout]:
        """Sample each request once; rollouts are yielded as they finish, in any order.

        `max_new_tokens` limits the whole completion. Raises UserError for a request that cannot fit.
        """
        ...

    def sleep(self) -> None:
        """Give device memory back until the next `update_weights`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Limit:
    """How many tokens a request is given now, and what it means to reach that number."""

    tokens: int
    reason: FinishReason


def limit(request: RolloutRequest, max_new_tokens: int, positions: int) -> Limit:
    """The limit of `request` in a model of `positions`; UserError if it cannot fit."""
    prompt, left = len(request.prompt_ids), max_new_tokens - len(request.begun_ids)
    if not prompt or prompt + max_new_tokens > positions or left < 1:
        raise UserError(
            f"{request.problem.name}: a prompt of {prompt} tokens and {max_new_tokens} new ones "
            f"({max_new_tokens - left} of them sampled before) do not fit the model's {positions} positions"
        )
    if request.share is not None and request.share < left:
        return Limit(request.share, "paused")
    return Limit(left, "length")


def as_rollout(
    request: RolloutRequest,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: FinishReason,
    tokenizer: Any,
) -> Rollout:
    """What came of `request`: `token_ids` are the new ones, behind those it had begun with."""
    ids = (*request.begun_ids, *token_ids)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Rollout(request, ids, (*request.begun_logprobs, *logprobs), finish_reason, text)


def make_engine(
    config: Config, model_config: Any, tokenizer: Any, eos_ids: Sequence[int], run: Run
) -> RolloutEngine:
    """The engine that `rollout.engine` names, on this rank's device; it has no weights yet."""
    from core.rollout.endings import Endings

    name = config.rollout.engine
    if name == "auto":
        name = "vllm" if run.device.type == "cuda" else "transformers"
    settings: dict[str, Any] = {
        "dtype": getattr(torch, config.policy.dtype),
        "device": run.device,
        "seed": config.run.seed,
        "max_rows": config.rollout.max_rows,
        "endings": Endings(tokenizer, config.rollout.stop, config.rollout.loop_at),
    }
    if name == "transformers":
        from core.rollout.transformers_engine import TransformersEngine

        return TransformersEngine(model_config, tokenizer, eos_ids, **settings)
    from core.rollout.vllm import VllmEngine

    settings["kv_cache_bytes"] = int(config.rollout.kv_cache_gib * 2**30)
    settings["tensor_parallel"] = config.rollout.tensor_parallel
    engine = VllmEngine(model_config, tokenizer, eos_ids, **settings)
    run.on_exit(engine.close)
    return engine
