"""Partial rollouts: what a budget cuts goes on, group by group, and nothing is lost or learnt twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.packing import train_sequences
from core.rollout import Rollout, RolloutRequest
from core.rollout.endings import ends_in_loop
from core.rollout.partial import PartialRollouts
from core.run import Run
from tests.golden.golden import run_golden
from tests.rollout_engines import ENGINES, by_key, golden_config, make, requests, with_weights

PROMPTS, SAMPLES, LIMIT = 4, 4, 48  # the golden config's prompts and group size


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    config = golden_config(tmp_path / "run", rollout__token_budget=PROMPTS * SAMPLES * 10)
    with Run(config, "test") as run:
        yield run


def _keyed(step: int, count: int) -> list[RolloutRequest]:
    """`count` groups of a step's fresh requests."""
    fresh = requests(count, SAMPLES, seed=step)
    return [
        replace(one, group=f"{step}/{one.group}", seed_key=("train", step, *one.seed_key[1:]))
        for one in fresh
    ]


def _steps(run: Run, engine: Any, partial: PartialRollouts, steps: range) -> list[list[Rollout]]:
    found = []
    for step in steps:
        asked = partial.requests(_keyed(step, partial.room))
        assert len({one.group for one in asked}) == PROMPTS
        budget = run.config.rollout.token_budget  # type: ignore[attr-defined]
        rollouts = list(partial.whole_groups(engine.generate(asked, LIMIT, 1.0, 1.0), step))
        assert sum(one.share or 0 for one in asked) <= budget
        found.append(rollouts)
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_groups_come_whole_with_their_segments(name: str, run: Run) -> None:
    engine = with_weights(make(name))
    partial = PartialRollouts(run.config, run)  # type: ignore[arg-type]
    steps = _steps(run, engine, partial, range(1, 9))
    seen = [one.request.seed_key for rollouts in steps for one in rollouts]
    assert len(seen) == len(set(seen)), "no rollout is handed out twice"
    late = 0
    for step, rollouts in enumerate(steps, start=1):
        groups: dict[str, list[Rollout]] = {}
        for one in rollouts:
            groups.setdefault(one.request.group, []).append(one)
            begun = one.request.begun
            old = one.request.begun_ids
            assert one.completion_ids[: len(old)] == old
            assert one.sampler_logprobs[: len(old)] == one.request.begun_logprobs
            born = int(one.request.group.split("/")[0])
            assert [part.version for part in begun] == sorted({part.version for part in begun})
            assert all(born <= part.version < step for part in begun) or one.completion_ids == old
            late += step > born
            assert one.finish_reason in ("stop", "length")
        assert all(len(members) == SAMPLES for members in groups.values())
    assert late, "some groups took more than one step"
    # Ten tokens a rollout and step, and more where some have ended: 48 take five steps at most.
    assert {one.request.group for rollouts in steps for one in rollouts} >= {
        f"1/g{n}" for n in range(PROMPTS)
    }


def test_pauses_do_not_change_what_is_sampled(run: Run) -> None:
    """With weights at rest and a uniform number a position, cut and uncut completions are equal."""
    engine = with_weights(make("transformers"))
    uncut = by_key(
        engine.generate([one for step in (1, 2) for one in _keyed(step, PROMPTS)], LIMIT, 1.0, 1.0)
    )
    steps = _steps(run, engine, PartialRollouts(run.config, run), range(1, 9))  # type: ignore[arg-type]
    cut = {one.request.seed_key: one for rollouts in steps for one in rollouts}
    both = cut.keys() & uncut.keys()
    assert len(both) >= PROMPTS * SAMPLES
    assert any(len(cut[key].request.begun) > 2 for key in both)
    for key in both:
        assert cut[key].completion_ids == uncut[key].completion_ids
        assert cut[key].sampler_logprobs == pytest.approx(uncut[key].sampler_logprobs, abs=1e-5)
        assert cut[key].finish_reason == uncut[key].finish_reason


def test_the_state_goes_through_json(run: Run) -> None:
    engine = with_weights(make("transformers"))
    partial = PartialRollouts(run.config, run)  # type: ignore[arg-type]
    _steps(run, engine, partial, range(1, 3))
    again = PartialRollouts(run.config, run)  # type: ignore[arg-type]
    assert partial.state_dict() != again.state_dict() == []
    again.load_state_dict(json.loads(json.dumps(partial.state_dict())))
    one, other = (_steps(run, engine, each, range(3, 6)) for each in (partial, again))
    assert one == other


def test_old_tokens_are_marked_for_the_loss(run: Run) -> None:
    engine = with_weights(make("transformers"))
    partial = PartialRollouts(run.config, run)  # type: ignore[arg-type]
    rollouts = [one for rollouts in _steps(run, engine, partial, range(1, 7)) for one in rollouts]
    (sequences,) = train_sequences(rollouts, [1.0] * len(rollouts), 1)
    stale = {s.token_ids: s.stale_tokens for s in sequences}
    assert any(stale.values())
    for one in rollouts:
        begun = sum(len(part.token_ids) for part in one.request.begun)
        assert stale[one.request.prompt_ids + one.completion_ids] == begun


def test_loops_against_a_slow_reference() -> None:
    """The slow one tries every length of a piece: the tail is a loop of at least 64 tokens in all."""

    def slow(ids: list[int], copies: int) -> bool:
        for piece in range(1, len(ids) + 1):
            length = max(piece * copies, -(-64 // piece) * piece)
            tail = ids[-length:]
            if len(tail) == length and all(tail[i] == tail[i % piece] for i in range(length)):
                return True
        return False

    draw = np.random.default_rng(0)
    found = []
    for _ in range(1500):
        head, piece = (draw.integers(0, 3, size=draw.integers(0, 20)).tolist() for _ in range(2))
        ids = [*head, *piece * int(draw.integers(1, 20)), 1]
        if draw.random() < 0.8:
            ids.pop()
        if not ids:
            continue
        copies = int(draw.integers(2, 7))
        found.append(ends_in_loop(ids, copies))
        assert found[-1] == slow(ids, copies), (ids, copies)
    assert 0.2 < sum(found) / len(found) < 0.8, "the cases cover both"


@pytest.mark.parametrize("stale_weight", [2.0, 0.0], ids=["corrected", "masked"])
def test_a_run_under_a_budget(stale_weight: float, tmp_path: Path) -> None:
    """16 rollouts of up to 160 tokens a step on 640 tokens: the run goes on, and old tokens are counted."""
    budget = {"rollout__token_budget": 640, "rollout__stale_weight": stale_weight, "run__steps": 4}
    metrics = run_golden("drgrpo_tiny", tmp_path / "run", **budget)
    steps = [line for line in metrics if "rollout/stale" in line]
    assert len(steps) == 4
    assert steps[0]["rollout/stale"] == 0
    assert any(line["rollout/stale"] > 0 for line in steps)
