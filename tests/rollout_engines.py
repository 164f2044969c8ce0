"""Both sampling engines with the golden policy's weights in float32: what their common tests share."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM

from core.config import Config, load_config
from core.problems import Problem
from core.prompts import load_tokenizer
from core.rollout import Rollout, RolloutRequest
from core.rollout.endings import Endings
from tests.golden.golden import EXPERIMENTS, GOLDEN

POLICY = GOLDEN / "policy"
SETTINGS: dict[str, Any] = {
    "dtype": torch.float32,
    "device": torch.device("cpu"),
    "seed": 3,
    "max_rows": 64,
}
TOKENIZER, EOS = load_tokenizer(str(POLICY))
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is no part of `make setup`: make test-vllm"
)
ENGINES = ["transformers", pytest.param("vllm", marks=needs_vllm)]


def make(name: str, *, eos: Sequence[int] = EOS, stop: Sequence[str] = (), loop_at: int | None = None) -> Any:
    """An engine without weights; its seed is 3. vLLM's is the process's only one, with other settings."""
    endings = Endings(TOKENIZER, stop, loop_at)
    if name == "transformers":
        from core.rollout.transformers_engine import TransformersEngine

        return TransformersEngine(model().config, TOKENIZER, eos, **SETTINGS, endings=endings)
    engine = _vllm()
    engine._eos, engine._endings = sorted(eos), endings
    return engine


@functools.cache
def _vllm() -> Any:
    from core.rollout.vllm import VllmEngine

    cache = 4 << 20  # bytes; 1,638 positions of this policy: less than most tests ask for at once
    endings = Endings(TOKENIZER, (), None)
    more = {"endings": endings, "kv_cache_bytes": cache, "tensor_parallel": 1}
    return VllmEngine(model().config, TOKENIZER, EOS, **SETTINGS, **more)


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()


def parameters() -> Iterator[tuple[str, Tensor]]:
    return ((name, value.detach()) for name, value in model().named_parameters())


def requests(prompts: int, copies: int, seed: int = 0) -> list[RolloutRequest]:
    """`copies` requests each for prompts of 20 tokens and more, the golden problems' own."""
    problem = Problem("t", "theorem t : True :=", "", "", "test")
    draw = np.random.default_rng(seed)
    rows = [tuple(draw.integers(0, 760, size=20 + place % 40).tolist()) for place in range(prompts)]
    return [
        RolloutRequest(problem, row, f"g{place}", 0, ("test", place, copy))
        for place, row in enumerate(rows)
        for copy in range(copies)
    ]


def by_key(rollouts: Iterator[Rollout]) -> dict[Any, Rollout]:
    found = list(rollouts)
    keyed = {rollout.request.seed_key: rollout for rollout in found}
    assert len(keyed) == len(found), "each request is answered once"
    return keyed


@torch.inference_mode()
def largest_gap(policy: Any, rollouts: Sequence[Rollout], temperature: float) -> float:
    """Largest |sampler − forward pass| of any token's log-prob, one sequence at a time and no cache."""
    worst = 0.0
    for rollout in rollouts:
        prompt, ids = rollout.request.prompt_ids, rollout.completion_ids
        logits = policy(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.double() / (temperature or 1.0), dim=-1)
        chosen = logprobs.gather(-1, torch.tensor(ids)[:, None])[:, 0]
        worst = max(worst, float((chosen - torch.tensor(rollout.sampler_logprobs)).abs().max()))
    return worst


def golden_config(folder: Path, **overrides: object) -> Config:
    """The golden run's config of drgrpo_tiny, with `section__key=value` on top."""
    text = (GOLDEN / "overrides.yaml").read_text(encoding="utf-8").replace("{golden}", str(GOLDEN))
    values = yaml.safe_load(text) | {key.replace("__", "."): value for key, value in overrides.items()}
    values["run.folder"] = folder
    plain = [f"{key}={'null' if value is None else value}" for key, value in values.items()]
    return load_config(Config, EXPERIMENTS / "drgrpo_tiny" / "config.yaml", plain)


def with_weights(engine: Any) -> Any:
    engine.update_weights(parameters())
    return engine
