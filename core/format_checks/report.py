"""What the format checks say about a completion, and the counters that metrics make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# In the order in which they decide: what makes others follow comes first.
KINDS = (
    "truncated", "too_long",
    "think_missing", "think_not_opened", "think_unclosed", "think_repeated", "text_before_think",
    "thinking_too_short", "thinking_foreign",
    "repeated_line", "repeated_ngrams", "loop",
    "lean_block_missing", "lean_block_wrong_tag", "lean_block_in_thinking", "lean_block_repeated",
    "lean_block_unclosed", "lean_block_empty", "text_before_lean_block", "text_after_lean_block",
    "fence_unclosed", "fence_nested",
    "tactics_blocks_too_few", "tactics_block_in_answer", "tactics_block_too_long",
    "tactics_comment_lines", "tactics_comment_characters",
    "lean_comment_lines", "lean_comment_characters",
    "alignment_too_low",
    "statement_missing", "statement_changed", "axiom", "local_instance",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fault of a completion. A completion has at most one of each kind, at the first place."""

    kind: str
    """One of `KINDS`."""
    line: int
    """From 1, in the completion."""
    column: int
    """From 0, in code points."""
    value: float | None
    """What was measured: a count, a share or a score; None where there is nothing to measure."""
    message: str


@dataclass(frozen=True)
class FormatReport:
    """All that the format checks found out about one completion."""

    findings: tuple[Finding, ...]
    """In the order of `KINDS`; the first decides what the completion is rejected for."""
    lean_code: str | None
    """Content of the answer's first lean4 block."""
    lean_line: int | None
    """Line of the completion (from 1) on which `lean_code` begins."""
    tactics_blocks: tuple[str, ...]
    """Contents of the thinking's tactics blocks."""
    thinking: str | None

    @property
    def passed(self) -> bool:
        return not self.findings


def format_counters(reports_and_turns: Iterable[tuple[FormatReport, int]]) -> dict[str, int]:
    """`format/<kind>/turn_<n>`: rollouts of that turn with that finding, zeros included.

    A rollout counts under each of its findings; `format/rejected/turn_<n>` counts it once.
    """
    counters: dict[str, int] = {}
    for report, turn in reports_and_turns:
        for kind in (*KINDS, "rejected"):
            counters.setdefault(f"format/{kind}/turn_{turn}", 0)
        for finding in report.findings:
            counters[f"format/{finding.kind}/turn_{turn}"] += 1
        counters[f"format/rejected/turn_{turn}"] += not report.passed
    return counters
