"""The transformers engine against a slow reference: one sequence at a time and no cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from core.errors import UserError
from core.policy import make_norms_exact
from core.problems import Problem
from core.rollout import Rollout, RolloutRequest
from core.rollout.transformers_engine import TransformersEngine, sample
from core.seeds import derive_seed


def _engine(folder: Path, tokenizer: Any, max_rows: int, eos: Sequence[int] = ()) -> TransformersEngine:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    engine = TransformersEngine(
        model.config,
        tokenizer,
        eos or [tokenizer.eos_token_id],
        dtype=torch.float64,
        device=torch.device("cpu"),
        seed=3,
        max_rows=max_rows,
    )
    engine.update_weights(iter(model.named_parameters()))
    return engine


def _requests(count: int, copies: int) -> list[RolloutRequest]:
    problem = Problem("t", "theorem t : True :=", "", "", "test")
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, 200, size=3 + 2 * i).tolist()) for i in range(count)]
    return [
        RolloutRequest(problem, prompt, str(place), 0, ("test", place, copy))
        for place, prompt in enumerate(prompts)
        for copy in range(copies)
    ]


def _by_key(rollouts: Any) -> dict[Any, Rollout]:
    found = list(rollouts)
    keyed = {rollout.request.seed_key: rollout for rollout in found}
    assert len(keyed) == len(found), "each request is answered once"
    return keyed


@torch.inference_mode()
def _reference(
    folder: Path, request: RolloutRequest, eos: Sequence[int], limit: int, temperature: float, top_p: float
) -> tuple[list[int], list[float], str]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    make_norms_exact(model)  # as the engine's are in float64
    uniforms = np.random.default_rng(derive_seed(3, *request.seed_key)).random(limit)
    tokens: list[int] = []
    logprobs: list[float] = []
    for uniform in uniforms:
        logits = model(input_ids=torch.tensor([[*request.prompt_ids, *tokens]])).logits[0, -1]
        scaled = (logits / (temperature or 1.0)).numpy()
        p = np.exp(scaled - scaled.max())
        p /= p.sum()
        if temperature == 0:
            token = int(p.argmax())
        else:
            order = np.argsort(-p, kind="stable")
            kept, mass = [], 0.0
            for index in order:
                kept.append(index)
                mass += p[index]
                if mass >= top_p:
                    break
            q = np.zeros_like(p)
            q[kept] = p[kept]
            running, token = 0.0, len(q) - 1
            for index, value in enumerate(q / q.sum()):
                running += value
                if uniform < running:
                    token = index
                    break
        tokens.append(token)
        logprobs.append(float(np.log(p[token])))
        if token in eos:
            return tokens, logprobs, "stop"
    return tokens, logprobs, "length"


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.3, 0.8), (0.0, 1.0)])
def test_tokens_and_logprobs_equal_the_slow_reference(
    model_folder: Path, tokenizer: Any, temperature: float, top_p: float
) -> None:
    requests = _requests(count=4, copies=2)
    eos = list(range(40))  # many, so that some stop early, some late and some never
    engine = _engine(model_folder, tokenizer, max_rows=5, eos=eos)
    found = _by_key(engine.generate(requests, 12, temperature, top_p))
    reasons = set()
    for request in requests:
        tokens, logprobs, reason = _reference(model_folder, request, eos, 12, temperature, top_p)
        rollout = found[request.seed_key]
        assert rollout.completion_ids == tuple(tokens)
        assert rollout.sampler_logprobs == pytest.approx(logprobs, abs=1e-9)
        assert rollout.finish_reason == reason
        assert rollout.text == tokenizer.decode(tokens, skip_special_tokens=True)
        reasons.add(reason)
    if temperature == 1.0:
        assert reasons == {"stop", "length"}, "the case covers both"


@pytest.mark.parametrize("max_rows", [1, 3, 64])
def test_tokens_do_not_depend_on_the_batch(model_folder: Path, tokenizer: Any, max_rows: int) -> None:
    requests = _requests(count=5, copies=3)
    eos = list(range(30))
    whole = _by_key(_engine(model_folder, tokenizer, 64, eos).generate(requests, 20, 1.0, 1.0))
    engine = _engine(model_folder, tokenizer, max_rows, eos)
    cut = _by_key(engine.generate(list(reversed(requests)), 20, 1.0, 1.0))
    for key, rollout in whole.items():
        assert cut[key].completion_ids == rollout.completion_ids
        assert cut[key].sampler_logprobs == pytest.approx(rollout.sampler_logprobs, abs=1e-10)


def test_samples_of_one_prompt_differ_and_seeds_matter(model_folder: Path, tokenizer: Any) -> None:
    requests = _requests(count=1, copies=8)
    engine = _engine(model_folder, tokenizer, 64)
    found = _by_key(engine.generate(requests, 10, 1.0, 1.0))
    assert len({rollout.completion_ids for rollout in found.values()}) == 8
    engine.seed = 4
    other = _by_key(engine.generate(requests, 10, 1.0, 1.0))
    assert all(other[key].completion_ids != found[key].completion_ids for key in found)


def test_rollouts_come_as_they_finish(model_folder: Path, tokenizer: Any) -> None:
    requests = _requests(count=1, copies=24)
    engine = _engine(model_folder, tokenizer, 64, eos=list(range(60)))
    lengths = [len(r.completion_ids) for r in engine.generate(requests, 40, 1.0, 1.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_new_weights_are_sampled_from(model_folder: Path, tokenizer: Any) -> None:
    engine = _engine(model_folder, tokenizer, 64)
    requests = _requests(count=2, copies=2)
    before = _by_key(engine.generate(requests, 8, 1.0, 1.0))
    parameters = {name: p.clone() for name, p in engine.model.parameters.items()}
    parameters["model.norm.weight"] *= 0.5
    engine.update_weights(iter(parameters.items()))
    after = _by_key(engine.generate(requests, 8, 1.0, 1.0))
    assert any(after[k].sampler_logprobs != before[k].sampler_logprobs for k in before)
    with pytest.raises(KeyError, match="no new value"):
        engine.update_weights(iter(list(parameters.items())[1:]))
    with pytest.raises(KeyError):
        engine.update_weights(iter([*parameters.items(), ("unheard.of", torch.zeros(1))]))


def test_what_does_not_fit_the_model_is_refused_before_sampling(model_folder: Path, tokenizer: Any) -> None:
    engine = _engine(model_folder, tokenizer, 64)
    (request,) = _requests(count=1, copies=1)
    with pytest.raises(UserError, match="256 positions"):
        next(engine.generate([request], 254, 1.0, 1.0))
    empty = RolloutRequest(request.problem, (), "0", 0, ("test",))
    with pytest.raises(UserError, match="prompt of 0 tokens"):
        next(engine.generate([empty], 4, 1.0, 1.0))
    assert list(engine.generate([], 4, 1.0, 1.0)) == []


def test_sampling_follows_the_distribution() -> None:
    """Inverting the distribution function on an even grid of u gives each token its share exactly."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64))
    grid = (torch.arange(16, dtype=torch.float64) + 0.5) / 16
    tokens, logprobs = sample(logits.expand(16, 4), grid, 1.0, 1.0)
    assert torch.bincount(tokens, minlength=4).tolist() == [8, 4, 2, 2]
    assert logprobs[0].exp().item() == pytest.approx(0.5)
    # top_p 0.75 keeps the first two, in ratio 2 : 1; log-probs stay those of the whole softmax.
    tokens, logprobs = sample(logits.expand(16, 4), grid, 1.0, 0.75)
    assert torch.bincount(tokens, minlength=4).tolist() == [11, 5, 0, 0]
    assert sorted(logprobs.exp().tolist()) == pytest.approx([0.25] * 5 + [0.5] * 11)
    # At temperature 1/2 probabilities are squared: 16 : 4 : 1 : 1 of 22.
    _, logprobs = sample(logits, torch.zeros(1, dtype=torch.float64), 0.5, 1.0)
    assert logprobs.exp().item() == pytest.approx(16 / 22)


def test_the_engine_leaves_the_trainers_attention_alone(model_folder: Path, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    TransformersEngine(
        model.config, tokenizer, [0], dtype=torch.float32, device=torch.device("cpu"), seed=0, max_rows=1
    )
    assert model.config._attn_implementation == "eager"
