"""The sampling engines' common protocol, for both; and what vLLM alone has to show."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from core.errors import UserError
from core.losses.drgrpo import drgrpo_loss
from core.packing import TrainSequence, pack
from core.policy import full_parameters, load_policy, policy_logprobs
from core.rollout import RolloutEngine, Segment
from core.rollout.sync import WeightSync
from core.run import Run
from core.update import finish_gradients, make_optimiser
from tests.golden.golden import golden_command, run_golden
from tests.rollout_engines import (
    ENGINES,
    EOS,
    TOKENIZER,
    by_key,
    golden_config,
    largest_gap,
    make,
    model,
    needs_vllm,
    parameters,
    requests,
    with_weights,
)

TEMPERATURE = 0.8


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> RolloutEngine:
    return with_weights(make(request.param))


@pytest.fixture(scope="module")
def policy() -> Any:
    return model()


def test_each_request_is_answered_once_with_the_forward_passs_logprobs(
    engine: RolloutEngine, policy: Any
) -> None:
    asked = requests(prompts=8, copies=4)
    found = by_key(engine.generate(asked, 60, TEMPERATURE, 1.0))
    assert found.keys() == {one.seed_key for one in asked}
    assert {one.finish_reason for one in found.values()} == {"stop", "length"}, "the case covers both"
    for one in found.values():
        assert len(one.sampler_logprobs) == len(one.completion_ids)
        assert (one.completion_ids[-1] in EOS) == (one.finish_reason == "stop")
        assert len(one.completion_ids) == 60 or one.finish_reason == "stop"
        assert one.text == TOKENIZER.decode(one.completion_ids, skip_special_tokens=True)
    assert largest_gap(policy, list(found.values()), TEMPERATURE) < 1e-4


def test_samples_depend_on_their_seed_and_not_on_the_batch(engine: RolloutEngine) -> None:
    asked = requests(prompts=3, copies=4)
    whole = by_key(engine.generate(asked, 24, 1.0, 1.0))
    alone = by_key(engine.generate(asked[5:6], 24, 1.0, 1.0))
    assert alone[asked[5].seed_key].completion_ids == whole[asked[5].seed_key].completion_ids
    for group in {one.group for one in asked}:
        mine = {one.completion_ids for one in whole.values() if one.request.group == group}
        assert len(mine) == 4, "samples of one prompt differ"
    renamed = [replace(one, seed_key=("other", *one.seed_key)) for one in asked]
    other = by_key(engine.generate(renamed, 24, 1.0, 1.0))
    assert all(
        other[("other", *key)].completion_ids != rollout.completion_ids for key, rollout in whole.items()
    )


def test_rollouts_come_as_they_finish_and_every_end_of_turn_id_counts(engine: RolloutEngine) -> None:
    asked = [replace(one, share=4 + place) for place, one in enumerate(requests(prompts=6, copies=1))]
    lengths = [len(one.completion_ids) for one in engine.generate(asked[::-1], 60, 1.0, 1.0)]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("name", ENGINES)
def test_end_ids_stop_texts_and_loops_end_a_completion(name: str, policy: Any) -> None:
    ends = sorted({*EOS, 11, 12, 13})
    engine = with_weights(make(name, eos=ends, stop=["no such text", " h1"]))
    found = by_key(engine.generate(requests(prompts=12, copies=2), 40, 1.0, 1.0))
    reached = set()
    for one in found.values():
        assert " h1" not in TOKENIZER.decode(one.completion_ids[:-1])
        assert not set(one.completion_ids[:-1]) & set(ends)
        if one.finish_reason == "stop":
            last = one.completion_ids[-1]
            assert last in ends or " h1" in TOKENIZER.decode(one.completion_ids)
            reached.add(last if last in ends else "text")
    assert "text" in reached
    assert reached & set(ends)
    assert largest_gap(policy, list(found.values()), 1.0) < 1e-4
    # Layers of zeros leave a map from token to token, so a greedy completion runs into a circle.
    engine = make(name, loop_at=3)
    keep = ("embed", "norm")
    kept = {n: p if any(k in n for k in keep) else torch.zeros_like(p) for n, p in parameters()}
    engine.update_weights(iter(kept.items()))
    for one in engine.generate(requests(prompts=4, copies=1), 400, 0.0, 1.0):
        assert one.finish_reason == "loop"
        assert len(one.completion_ids) % 32 == 0
        assert 64 <= len(one.completion_ids) < 400


def test_a_paused_completion_goes_on_behind_what_it_has(engine: RolloutEngine, policy: Any) -> None:
    asked = [replace(one, share=9) for one in requests(prompts=5, copies=2)]
    first = list(engine.generate(asked, 30, 1.0, 1.0))
    paused = [one for one in first if one.finish_reason == "paused"]
    assert {len(one.completion_ids) for one in paused} == {9}
    again = [
        replace(one.request, begun=(Segment(1, one.completion_ids, one.sampler_logprobs),), share=None)
        for one in paused
    ]
    found = by_key(engine.generate(again, 30, 1.0, 1.0))
    for one in paused:
        whole = found[one.request.seed_key]
        assert whole.completion_ids[:9] == one.completion_ids
        assert whole.sampler_logprobs[:9] == one.sampler_logprobs
        assert 9 < len(whole.completion_ids) <= 30
    assert largest_gap(policy, list(found.values()), 1.0) < 1e-4


def test_what_cannot_be_sampled_is_refused_and_the_engine_lives_on(engine: RolloutEngine) -> None:
    (request,) = requests(prompts=1, copies=1)
    with pytest.raises(UserError, match="1024 positions"):
        list(engine.generate([request], 1020, 1.0, 1.0))
    with pytest.raises(UserError, match="prompt of 0 tokens"):
        list(engine.generate([replace(request, prompt_ids=())], 4, 1.0, 1.0))
    assert list(engine.generate([], 4, 1.0, 1.0)) == []
    rollouts = engine.generate(requests(prompts=2, copies=2), 200, 1.0, 1.0)
    next(rollouts)
    rollouts.close()  # type: ignore[attr-defined]
    assert len(list(engine.generate(requests(prompts=2, copies=2), 8, 1.0, 1.0))) == 4


@pytest.mark.parametrize("name", ENGINES)
def test_twenty_updates_in_step_and_an_update_left_out_is_found(name: str, tmp_path: Path) -> None:
    config = golden_config(tmp_path / "run", policy__dtype="float32", optimiser__learning_rate=1e-3)
    policy = load_policy(config.policy)
    optimiser = make_optimiser(policy, config.optimiser)
    with Run(config, "test") as run:
        engine = make(name)
        sync = WeightSync(engine, policy, config, run)
        asked = requests(prompts=4, copies=2)
        for step in range(20):
            sync.update(step)
            rollouts = list(engine.generate(asked, 24, 1.0, 1.0))
            assert _update(policy, optimiser, rollouts) < 1e-4, f"after update {step}"
        with pytest.raises(UserError, match=r"rank 0: log-probs \S+ nats apart, embed_tokens, layers.0"):
            sync.prove()
        engine.update_weights(full_parameters(policy))
        sync.prove()
        parts = dict(full_parameters(policy))
        parts["model.layers.3.mlp.up_proj.weight"] = parts["model.layers.3.mlp.up_proj.weight"] * 1.01
        engine.update_weights(iter(parts.items()))
        with pytest.raises(UserError, match=r"apart, layers.3 differ"):
            sync.prove()


def _update(policy: Any, optimiser: Any, rollouts: list[Any]) -> float:
    """An optimiser step; returns the largest |trainer − sampler| of a log-prob before it."""
    sequences = [
        TrainSequence(
            one.request.prompt_ids + one.completion_ids,
            len(one.request.prompt_ids),
            (-1.0) ** place,
            one.sampler_logprobs,
            1.0,
        )
        for place, one in enumerate(rollouts)
    ]
    (batch,) = pack(
        sequences,
        token_budget=4096,
        rank=0,
        world_size=1,
        device=policy.device,
        dtype=policy.logprob_dtype,
    )
    logprobs_C, _ = policy_logprobs(policy, batch, temperature=1.0, entropy=False)
    terms = (logprobs_C, logprobs_C.detach(), batch.advantages_C, batch.mask_C, batch.weights_C)
    loss, _ = drgrpo_loss(*terms, clip_low=0.2, clip_high=0.3, dual_clip=None, normaliser=len(sequences) * 24)
    loss.backward()
    finish_gradients(policy, 1.0)
    optimiser.step(1.0)
    return float((logprobs_C.detach() - batch.sampler_logprobs_C).abs().max())


@needs_vllm
def test_both_engines_are_greedy_alike_on_100_prompts() -> None:
    asked = requests(prompts=100, copies=1, seed=1)
    ours, theirs = (
        by_key(with_weights(make(name)).generate(asked, 32, 0.0, 1.0)) for name in ("transformers", "vllm")
    )
    for key, one in ours.items():
        assert theirs[key].completion_ids == one.completion_ids
        assert theirs[key].sampler_logprobs == pytest.approx(one.sampler_logprobs, abs=1e-4)


@needs_vllm
def test_samples_share_their_prompts_cache_and_a_full_cache_only_delays(policy: Any) -> None:
    engine = with_weights(make("vllm", eos=()))
    asked = [replace(one, prompt_ids=one.prompt_ids * 4) for one in requests(prompts=2, copies=20)]
    preempted, shared = [], []
    scheduler = engine._engine.engine_core.engine_core.scheduler
    take_back, step = scheduler._preempt_request, engine._step

    def watched_step() -> list[Any]:
        outputs = step()
        shared.extend(one.num_cached_tokens for one in outputs if one.finished)
        return outputs

    def watched_preemption(*arguments: Any, **named: Any) -> None:
        preempted.append(arguments[0])
        take_back(*arguments, **named)

    scheduler._preempt_request, engine._step = watched_preemption, watched_step
    try:
        found = list(engine.generate(asked, 100, 1.0, 1.0))
    finally:
        scheduler._preempt_request, engine._step = take_back, step
    assert preempted, "40 sequences of up to 184 tokens do not fit 1,638 positions at once"
    assert len(found) == 40
    assert {one.finish_reason for one in found} == {"length"}
    assert sum(count >= 64 for count in shared) >= 30, "two blocks of 32 tokens of a prompt are read once"
    assert largest_gap(policy, found, 1.0) < 1e-4


@needs_vllm
def test_a_cache_too_small_for_one_sequence_is_the_users_to_mend(tmp_path: Path) -> None:
    command = golden_command("drgrpo_tiny", tmp_path, rollout__engine="vllm", rollout__kv_cache_gib=0.001)
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2, done.stderr
    assert "error: vLLM cannot be set up (rollout.kv_cache_gib" in done.stderr


@needs_vllm
@pytest.mark.parametrize("processes", [1, 2])
def test_the_golden_config_runs_with_vllm(processes: int, tmp_path: Path) -> None:
    metrics = run_golden("drgrpo_tiny", tmp_path / "run", processes, rollout__engine="vllm")
    steps = [line for line in metrics if "reward/mean" in line]
    assert len(steps) == 3
    assert all(line["rollout/logprob_gap/max"] < 1e-4 for line in steps if line["update/count"])


@needs_vllm
def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    overrides = {"rollout__engine": "vllm", "run__steps": 200, "evaluate__every": 0}
    command = golden_command("drgrpo_tiny", tmp_path / "run", 2, **overrides)
    errors = (tmp_path / "stderr").open("w+")
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and '"step": 1' in metrics.read_text()):
            assert job.poll() is None
            time.sleep(0.2)
        psutil.Process(job.pid).children()[1].kill()
        assert job.wait(timeout=120) != 0
    finally:
        job.kill()
    errors.seek(0)
    assert "SIGKILL" in errors.read()
