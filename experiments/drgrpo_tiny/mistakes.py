"""Wrong proofs that resemble a small model's own, for error-fix demonstrations."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from experiments.drgrpo_tiny.theorems import BOUND, Theorem

_HAVE = re.compile(r"have (h\d+) : (.*?) := (.*)")
_NAME = re.compile(r"\bh\d+\b")
_OPPOSITES = {
    ".left": ".right",
    ".right": ".left",
    "And.left": "And.right",
    "And.right": "And.left",
    "Or.inl": "Or.inr",
    "Or.inr": "Or.inl",
    ".mp ": ".mpr ",
    ".mpr ": ".mp ",
    ".symm": "",
}
_SIDE = re.compile("|".join(re.escape(side) for side in sorted(_OPPOSITES, key=len, reverse=True)))
_TWO_NAMES = re.compile(r"\b(h\d+|hx)( | := |\.trans |\.mp |\.mpr |, )(h\d+|hx)\b")

Lines = list[str]


def spoil(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """The lines with one mistake in them, seldom two; by bad luck they may still be a proof.

    What a mistake needs may be missing (a side to confuse, a step to forget), so kinds are tried in
    random order until one applies. None if none does, as for `rfl` alone.
    """
    spoilt = _once(lines, theorem, rng)
    if spoilt and rng.random() < 0.2:
        twice = _once(spoilt, theorem, rng)
        return spoilt if twice == lines else twice  # the second may undo the first
    return spoilt


def _once(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    kinds = sorted(KINDS, key=lambda kind: rng.random() ** (1 / KINDS[kind]), reverse=True)
    for kind in kinds:
        spoilt = kind(lines, theorem, rng)
        if spoilt is not None and spoilt != lines:
            return spoilt
    return None


def _expression_start(line: str) -> int:
    """Where a line's expression begins: behind `:=`, or at the start of a final line."""
    return line.index(":=") + 3 if line.startswith("have") else 0


def _in_scope(lines: Lines, index: int, theorem: Theorem) -> list[str]:
    """Names that line `index` may use."""
    before = " ".join(lines[:index])
    introduced = re.findall(r"(?:have |fun \(|fun \w+ )(h\d+)", before)
    return [name for name, _ in theorem.named_hypotheses()] + introduced


def _replace(lines: Lines, index: int, start: int, end: int, text: str) -> Lines:
    line = lines[index]
    return [*lines[:index], line[:start] + text + line[end:], *lines[index + 1 :]]


def _places(lines: Lines, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
    """Matches inside expressions; lines that open a `fun` are left alone."""
    found = []
    for index, line in enumerate(lines):
        if not line.endswith("=>"):
            start = _expression_start(line)
            found += [(index, match) for match in pattern.finditer(line, start)]
    return found


def wrong_name(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """Another hypothesis than the right one, seldom one that does not exist."""
    places = _places(lines, _NAME)
    if not places:
        return None
    index, match = rng.choice(places)
    names = _in_scope(lines, index, theorem)
    others = [name for name in names if name != match.group()]
    if not others or rng.random() < 0.12:
        others = [f"h{len(names) + 1}", f"h{len(names) + 2}"]
    return _replace(lines, index, *match.span(), rng.choice(others))


def wrong_side(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """Left for right, forwards for backwards."""
    places = _places(lines, _SIDE)
    if not places:
        return None
    index, match = rng.choice(places)
    return _replace(lines, index, *match.span(), _OPPOSITES[match.group()])


def swapped(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """Two neighbouring names in the wrong order."""
    places = [place for place in _places(lines, _TWO_NAMES) if ":=" not in place[1].group(2)]
    if not places:
        return None
    index, match = rng.choice(places)
    first, between, second = match.groups()
    return _replace(lines, index, *match.span(), f"{second}{between}{first}")


def wrong_type(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """A step that claims something else: one letter off, or another formula of the theorem."""
    haves = [(i, match) for i, line in enumerate(lines) if (match := _HAVE.match(line))]
    if not haves:
        return None
    index, match = rng.choice(haves)
    start, end = match.span(2)
    claimed = match.group(2)
    if rng.random() < 0.3:
        formulas = [theorem.goal, *theorem.hypotheses]
        parts = [part for formula in formulas for part in (formula, *formula.args)]
        shown = [part.lean() for part in parts if part.head not in BOUND]
        return _replace(lines, index, start, end, rng.choice(shown))
    letters = [m for m in re.finditer(r"\b\w\b", claimed) if m.group() in theorem.sorts]
    if not letters:
        return None
    letter = rng.choice(letters)
    sort = theorem.sorts[letter.group()]
    others = [s for s, its in theorem.sorts.items() if its == sort and s != letter.group()]
    if not others:
        return None
    return _replace(lines, index, start + letter.start(), start + letter.end(), rng.choice(others))


def forgotten_step(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """A step left out, later names counted on without a gap or not."""
    haves = [i for i, line in enumerate(lines) if line.startswith("have")]
    if not haves:
        return None
    index = rng.choice(haves)
    gone = int(lines[index].split()[1][1:])
    rest = lines[index + 1 :]
    if rng.random() < 0.7:

        def renumber(match: re.Match[str]) -> str:
            number = int(match.group()[1:])
            return f"h{number - 1}" if number > gone else match.group()

        rest = [_NAME.sub(renumber, line) for line in rest]
    return [*lines[:index], *rest]


def early_end(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """The proof stops with a fact that is not the goal, or goes wrong in its last line."""
    haves = [i for i, line in enumerate(lines) if line.startswith("have")]
    keep = rng.choice(haves) + 1 if haves else len(lines) - 1
    names = _in_scope(lines, keep, theorem)
    if not names:
        return None
    final = names[-1] if rng.random() < 0.5 else rng.choice(names)
    return [*lines[:keep], final]


def wrong_rule(lines: Lines, theorem: Theorem, rng: random.Random) -> Lines | None:
    """Another inference than the right one, on the same or similar premises."""
    index = rng.randrange(len(lines))
    line = lines[index]
    if line.endswith("=>"):
        return None
    names = _in_scope(lines, index, theorem)
    if not names:
        return None
    first, second = rng.choice(names), rng.choice(names)
    expressions = [
        f"{first}.left",
        f"{first}.right",
        f"{first} {second}",
        f"{first}.mp {second}",
        f"And.intro {first} {second}",
        f"Or.inl {first}",
        f"Or.inr {first}",
        first,
    ]
    return _replace(lines, index, _expression_start(line), len(line), rng.choice(expressions))


Kind = Callable[[Lines, Theorem, random.Random], Lines | None]
KINDS: dict[Kind, float] = {
    wrong_name: 5.0,
    wrong_type: 4.0,
    wrong_side: 3.0,
    forgotten_step: 2.5,
    early_end: 2.0,
    wrong_rule: 2.0,
    swapped: 1.5,
}
"""Mistake → its weight."""
