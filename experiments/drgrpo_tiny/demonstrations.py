"""Demonstrations: a proof written out in the recipe's format, in few and fixed words.

There are two ways of working, each with its first sentence: from the goal, in one expression, and from what
is given, writing down what follows until the goal does. A cold-started policy does either, and which one
serves it better is for training to find out. Words that vary are left out: a small model spends its updates
on guessing them (LOG.md, 2026-11-30).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.lean.verdict import LeanMessage
from experiments.drgrpo_tiny.layout import lay_out, lay_out_forward
from experiments.drgrpo_tiny.theorems import Theorem

FORWARD_SHARE = 0.5  # of the demonstrations work from what is given
FORWARD = "See what follows."
_SAID = [
    (
        r"has type\s+(.+)\n(?:of sort .*)?but is expected to have type\s+(.+)",
        "It gives {0}, not {1}.",
    ),
    (r"Unknown identifier `(\w+)`", "There is no {0}."),
    (r"Function expected at\s+(.+)", "{0} is no function."),
    (r"Invalid field", "It has no such part."),
]
"""Pattern of Lean's text → what to say about it."""
_LONGEST_REASON = 60  # characters
_MOST_LINES = 5  # of a tactics block: what the format checks allow in any case


@dataclass(frozen=True)
class Attempt:
    """A theorem, the first words of the thinking, and the lines of a proof."""

    theorem: Theorem
    opening: str
    lines: tuple[str, ...]

    @property
    def code(self) -> str:
        """The text of the lean4 block."""
        return "\n".join([self.theorem.statement(), *(f"  {line}" for line in self.lines)])

    @property
    def completion(self) -> str:
        """The thinking with the lines in tactics blocks, and the answer."""
        thinking = []
        for start in range(0, len(self.lines), _MOST_LINES):
            words = self.opening if start == 0 else "Go on."
            body = "\n".join(f"  {line}" for line in self.lines[start : start + _MOST_LINES])
            thinking.append(f"{words}\n```tactics\n{body}\n```")
        return "<think>\n" + "\n".join(thinking) + f"\n</think>\n```lean4\n{self.code}\n```"


def demonstrate(theorem: Theorem, rng: random.Random) -> Attempt:
    """A right proof of `theorem`, found in one of the two ways."""
    return (from_given if rng.random() < FORWARD_SHARE else from_goal)(theorem, rng)


def from_given(theorem: Theorem, rng: random.Random) -> Attempt:
    """A right proof that writes down what follows, needed or not."""
    lines = lay_out_forward(theorem.named_hypotheses(), theorem.goal, theorem.individuals(), rng)
    return Attempt(theorem, FORWARD, tuple(lines))


def from_goal(theorem: Theorem, rng: random.Random) -> Attempt:
    """A right proof in one expression, behind what it assumes."""
    lines = lay_out(theorem.prove(rng), len(theorem.hypotheses) + 1)
    return Attempt(theorem, f"Goal: {theorem.goal.lean()}.", tuple(lines))


def with_lines(right: Attempt, lines: Sequence[str]) -> Attempt:
    """The attempt with its proof replaced by `lines`, told as if they were right."""
    return replace(right, lines=tuple(lines))


def demonstrate_fix(right: Attempt, failed_lines: Sequence[str], error: LeanMessage) -> Attempt:
    """The proof of `right` behind a look at `failed_lines`, whose first error is `error`."""
    return replace(right, opening=f"{name_mistake(failed_lines, error)}\n{right.opening}")


def name_mistake(failed_lines: Sequence[str], error: LeanMessage) -> str:
    """A sentence or two on what Lean said: which step fails, and on what."""
    index = error.line - 2  # line 1 is the statement
    step = failed_lines[index] if 0 <= index < len(failed_lines) else ""
    if step.startswith("have "):
        place = f"{step.split()[1]} is wrong."
    else:
        place = "The last line is wrong." if index == len(failed_lines) - 1 else "The proof is wrong."
    for pattern, sentence in _SAID:
        if match := re.search(pattern, error.text):
            reason = sentence.format(*match.groups())
            return f"{place} {reason}" if len(reason) <= _LONGEST_REASON else place
    return place
