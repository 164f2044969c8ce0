"""The metrics of a step, under their glossary names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.format_checks import format_counters
from core.lean.verdict import Verdict
from core.rewards import ScoredRollout


def rollout_metrics(
    scored_B: Sequence[ScoredRollout], advantages_B: Sequence[float | None]
) -> dict[str, float]:
    """Rewards, verdicts, lengths and format errors of a step; every share is of all B rollouts."""
    count = len(scored_B)
    rewards = [s.reward for s in scored_B if s.reward is not None]
    verdicts = Counter(s.result.verdict for s in scored_B if s.result is not None)
    lengths = [len(s.rollout.completion_ids) for s in scored_B]
    stale = sum(len(s.rollout.request.begun_ids) for s in scored_B)
    metrics = {
        "reward/mean": mean(rewards),
        "reward/censored": float(count - len(rewards)),
        "reward/useful": mean([bool(a) for a in advantages_B]),
        "format/errors": mean([not s.format.passed for s in scored_B]),
        "rollout/length/mean": mean(lengths),
        "rollout/length/max": float(max(lengths, default=0)),
        "rollout/truncated": mean([s.rollout.finish_reason == "length" for s in scored_B]),
        "rollout/loops": mean([s.rollout.finish_reason == "loop" for s in scored_B]),
        "rollout/stale": stale / max(sum(lengths), 1),
    }
    for turn in (0, 1):
        judged = [s for s in scored_B if s.rollout.request.turn == turn and s.reward is not None]
        if judged:
            metrics[f"reward/mean/turn_{turn}"] = mean([s.reward for s in judged])
    metrics |= {f"lean/{verdict.value}": float(verdicts[verdict]) for verdict in Verdict}
    refused = [s.result.rule for s in scored_B if s.result and s.result.verdict is Verdict.REFUSED]
    metrics |= {f"lean/refused/{rule}": float(hits) for rule, hits in Counter(refused).items()}
    counters = format_counters([(s.format, s.rollout.request.turn) for s in scored_B])
    return metrics | {name: float(value) for name, value in counters.items()}


def mean_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step's updates, averaged over the updates that have them, and the number of updates."""
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    means = {name: mean([metrics[name] for metrics in updates if name in metrics]) for name in names}
    return means | {"update/count": float(len(updates))}


def mean(values: Sequence[Any]) -> float:
    """Their mean; NaN of none."""
    return sum(map(float, values)) / len(values) if values else math.nan
