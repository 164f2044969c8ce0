"""The embedded sampling engine: batched decoding with a key-value cache on transformers' own models.

It holds its own copy of the weights, as vLLM does, so both engines are fed and checked the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch

from core.rollout import FinishReason, Limit, Rollout, RolloutRequest, as_rollout, limit
from core.rollout.endings import Endings
from core.rollout.qwen3 import Cache, Qwen3Sampler
from core.rollout.sync import layer_checksums
from core.seeds import derive_seed

# R rows (sequences being decoded) · V vocabulary · S positions in the cache
COMPACT_BELOW = 0.8  # finished rows leave the batch once fewer than this share of it is alive


class TransformersEngine:
    """Samples with `transformers`; see `core.rollout.RolloutEngine` for the protocol.

    Prompts shared by several requests are read once. A row's randomness is one uniform number per
    position, drawn from its own seed, so tokens do not depend on which rows are decoded together.
    """

    def __init__(
        self,
        model_config: Any,
        tokenizer: Any,
        eos_ids: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        max_rows: int,
        endings: Endings | None = None,
    ) -> None:
        self.model = Qwen3Sampler(model_config, dtype, device)
        self.dtype = dtype
        self.longest = model_config.max_position_embeddings
        self.tokenizer = tokenizer
        self.eos = torch.tensor(sorted(eos_ids), device=device)
        self.device = device
        self.seed = seed
        self.max_rows = max_rows
        self.endings = endings or Endings(tokenizer, (), None)

    def update_weights(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy the trainer's full parameters; raises KeyError if one is unknown or left out."""
        mine = self.model.parameters
        left = set(mine)
        with torch.no_grad():
            for name, value in parameters:
                mine[name].copy_(value)
                left.discard(name)
        if left:
            raise KeyError(f"update_weights: no new value for {sorted(left)[:3]}")

    def checksums(self) -> dict[str, int]:
        one_copy = {"q_norm.weight", "k_norm.weight"}  # the sampler has them once a head
        return layer_checksums(
            (name, value[0] if name.rsplit("self_attn.")[-1] in one_copy else value)
            for name, value in self.model.parameters.items()
        )

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        max_new_tokens: int,
        temperature: float,
        top_p: float,
    ) -> Iterator[Rollout]:
        """Sample every request once, in waves of at most `max_rows` rows of similar prompt length."""
        limits = {request: limit(request, max_new_tokens, self.longest) for request in requests}
        for wave in self._waves(requests):
            yield from self._decode(wave, [limits[request] for request in wave], temperature, top_p)

    def _waves(self, requests: Sequence[RolloutRequest]) -> list[list[RolloutRequest]]:
        """At most `max_rows` requests each, shortest prompts first, none over 8 times the first."""
        waves: list[list[RolloutRequest]] = []
        for request in sorted(requests, key=lambda r: (len(r.context_ids), r.context_ids)):
            fits = waves and len(waves[-1]) < self.max_rows
            if fits and len(request.context_ids) <= 8 * len(waves[-1][0].context_ids):
                waves[-1].append(request)
            else:
                waves.append([request])
        return waves

    @torch.inference_mode()
    def _decode(
        self, wave: Sequence[RolloutRequest], limits: Sequence[Limit], temperature: float, top_p: float
    ) -> Iterator[Rollout]:
        logits_RV, cache = self._read_prompts(wave)
        limits_R = torch.tensor([one.tokens for one in limits], device=self.device)
        longest = max(one.tokens for one in limits)
        uniforms = np.stack([self._uniforms(request, longest) for request in wave])
        uniforms_RN = torch.from_numpy(uniforms).to(self.device)
        tokens_RN = torch.zeros(len(wave), longest, dtype=torch.long, device=self.device)
        logprobs_RN = torch.zeros(len(wave), longest, dtype=torch.float64, device=self.device)
        rows = torch.arange(len(wave), device=self.device)  # which request each live row is
        alive_R = torch.ones(len(wave), dtype=torch.bool, device=self.device)
        for position in range(longest):
            token_R, logprob_R = sample(logits_RV, uniforms_RN[rows, position], temperature, top_p)
            tokens_RN[rows, position] = token_R
            logprobs_RN[rows, position] = logprob_R
            stopped_R = torch.isin(token_R, self.eos)
            over_R = stopped_R | (limits_R[rows] == position + 1)
            early = self._early_endings(wave, rows, alive_R & ~stopped_R, tokens_RN[:, : position + 1])
            if early:
                over_R |= torch.isin(rows, torch.tensor(list(early), device=self.device))
            for row in (over_R & alive_R).nonzero().flatten().tolist():
                place = int(rows[row])
                ids, logprobs = (x_RN[place, : position + 1].tolist() for x_RN in (tokens_RN, logprobs_RN))
                reason = "stop" if stopped_R[row] else early.get(place, limits[place].reason)
                yield as_rollout(wave[place], ids, logprobs, reason, self.tokenizer)
            alive_R &= ~over_R
            living = int(alive_R.sum())
            if living == 0:
                break
            if living < COMPACT_BELOW * len(rows):
                keep = alive_R.nonzero().flatten()
                cache.select(keep)
                token_R, rows = token_R[keep], rows[keep]
                alive_R = torch.ones(living, dtype=torch.bool, device=self.device)
            logits_RV = self.model.next_logits(token_R, cache)

    def _early_endings(
        self,
        wave: Sequence[RolloutRequest],
        rows: torch.Tensor,
        open_R: torch.Tensor,
        tokens_RN: torch.Tensor,
    ) -> dict[int, FinishReason]:
        """Requests, by place in the wave, whose newest token completes a stop text or a loop."""
        found: dict[int, FinishReason] = {}
        for place in rows[open_R].tolist() if self.endings.every else ():
            ids = (*wave[place].begun_ids, *tokens_RN[place].tolist())
            ending = self.endings.find(ids, len(ids) - 1)
            if ending:
                found[place] = ending[1]
        return found

    def _read_prompts(self, wave: Sequence[RolloutRequest]) -> tuple[torch.Tensor, Cache]:
        """Last logits and cache of each row; equal neighbouring prompts are read once."""
        prompts = [(key, len(list(same))) for key, same in groupby(wave, key=lambda r: r.context_ids)]
        longest = max(len(prompt) for prompt, _ in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, (prompt, _) in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        starts_P = torch.tensor([longest - len(prompt) for prompt, _ in prompts], device=self.device)
        counts_P = torch.tensor([count for _, count in prompts], device=self.device)
        prompt_R = torch.repeat_interleave(counts_P)
        cache = Cache(starts_P, prompt_R)
        return self.model.read_prompts(ids.to(self.device), cache)[prompt_R], cache

    def _uniforms(self, request: RolloutRequest, count: int) -> np.ndarray:
        begun = len(request.begun_ids)  # a pause does not change what is sampled
        return np.random.default_rng(derive_seed(self.seed, *request.seed_key)).random(begun + count)[begun:]

    def sleep(self) -> None:
        """Nothing to give back: the weights stay."""

    def close(self) -> None:
        """Nothing to release."""


def sample(
    logits_RV: torch.Tensor, uniform_R: torch.Tensor, temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token a row by inverting the cumulative distribution at `uniform_R` in [0, 1).

    Returns the tokens (R) and log softmax(logits / temperature) at them (R, float64), before top-p.
    `temperature` 0 takes the most probable token, whose log-prob is then at temperature 1.
    """
    scale = temperature if temperature > 0 else 1.0
    logprobs_RV = torch.log_softmax(logits_RV.double() / scale, dim=-1)
    if temperature == 0:
        token_R = logprobs_RV.argmax(dim=-1)
    else:
        probs_RV = logprobs_RV.exp()
        if top_p < 1.0:
            probs_RV = _keep_nucleus(probs_RV, top_p)
        cumulative_RV = probs_RV.cumsum(dim=-1)
        target_R1 = (uniform_R * cumulative_RV[:, -1])[:, None]
        token_R = torch.searchsorted(cumulative_RV, target_R1, right=True)[:, 0]
        token_R = token_R.clamp(max=logits_RV.shape[-1] - 1)
    return token_R, logprobs_RV.gather(-1, token_R[:, None])[:, 0]


def _keep_nucleus(probs_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero all but the smallest set of most probable tokens that reaches `top_p`."""
    sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True)
    before_RV = sorted_RV.cumsum(dim=-1) - sorted_RV
    kept_RV = sorted_RV.where(before_RV < top_p, 0.0)
    return torch.zeros_like(probs_RV).scatter(-1, order_RV, kept_RV)
