"""What is written down of a step: the line that a person reads, and a flat row a rollout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from core.lean.verdict import Verdict
from core.rewards import ScoredRollout


def rollout_rows(
    scored_B: Sequence[ScoredRollout], advantages_B: Sequence[float | None], tokenizer: Any, step: int
) -> list[dict[str, Any]]:
    """One flat row a rollout, for parquet."""
    rows = []
    for scored, advantage in zip(scored_B, advantages_B, strict=True):
        rollout, result = scored.rollout, scored.result
        request = rollout.request
        rows.append(
            {
                "step": step,
                "group": request.group,
                "turn": request.turn,
                "problem": request.problem.name,
                "source": request.problem.source,
                "header": request.problem.header,
                "statement": request.problem.statement,
                "prompt": tokenizer.decode(request.prompt_ids),
                "completion": rollout.text,
                "prompt_tokens": len(request.prompt_ids),
                "completion_tokens": len(rollout.completion_ids),
                "finish_reason": rollout.finish_reason,
                "format_passed": scored.format.passed,
                "format_report": json.dumps(
                    [[f.kind, f.line, f.column, f.value, f.message] for f in scored.format.findings]
                ),
                "verdict": result.verdict.value if result else None,
                "verdict_rule": result.rule if result else None,
                "lean_messages": json.dumps(
                    [[m.severity, m.line, m.column, m.text] for m in result.messages] if result else [],
                    ensure_ascii=False,
                ),
                "lean_raw": result.raw if result else "",
                "lean_seconds": result.seconds if result else None,
                "reward": scored.reward,
                "advantage": advantage,
            }
        )
    return rows


def step_line(step: int, metrics: dict[str, float], seconds: dict[str, float]) -> str:
    """The line a person reads of a step."""
    verdicts = " ".join(
        f"{v.value} {metrics[f'lean/{v.value}']:.0f}" for v in Verdict if metrics[f"lean/{v.value}"]
    )
    clock = " ".join(f"{name} {value:.1f}s" for name, value in seconds.items())
    turns = "".join(
        f" {name} {metrics[key]:.2f}"
        for name, key in (("fresh", "reward/mean/turn_0"), ("fix", "reward/mean/turn_1"))
        if key in metrics
    )
    return (
        f"step {step:>4} | reward {metrics['reward/mean']:.3f}{turns}"
        f" | format errors {metrics['format/errors']:.3f}"
        f" | length {metrics['rollout/length/mean']:.0f}"
        f" | {verdicts or 'no verdicts'} | {clock}"
    )
