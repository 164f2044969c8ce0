"""Demonstrations: a proof written out in the recipe's format, in varied but short words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from experiments.drgrpo_tiny.layout import STYLES, Line, lay_out
from experiments.drgrpo_tiny.theorems import Theorem

_GOAL = ["Goal: {goal}.", "We need {goal}.", "Show {goal}.", "We want {goal}."]
_SAY = {
    "name": ["{0} is the goal.", "So {0} is it."],
    "left": ["Take {0} apart.", "Split {0}.", "{0} has {shows}."],
    "right": ["Take {0} apart.", "Split {0}.", "{0} has {shows}."],
    "app": ["Apply {0}.", "Use {0}.", "{0} gives {shows}."],
    "inst": ["Take {0} at {1}.", "Use {0} for {1}."],
    "mp": ["Use {0} forwards.", "{0} gives {shows}."],
    "mpr": ["Use {0} backwards.", "{0} gives {shows}."],
    "symm": ["Turn {0} around.", "Read {0} backwards."],
    "trans": ["Chain {0} and {1}.", "Go through {0}."],
    "congr": ["Same on both sides of {0}.", "Lift {0}."],
    "subst": ["Rewrite with {0}.", "Replace along {0}."],
    "and": ["Join the two.", "Build the pair.", "Put them together."],
    "inl": ["The left side holds.", "Choose left."],
    "inr": ["The right side holds.", "Choose right."],
    "iff": ["Both directions.", "Join the directions."],
    "exists": ["A witness is there.", "Give the witness."],
    "rfl": ["Both sides compute.", "Just compute."],
    "absurd": ["That is a contradiction.", "These two clash."],
    "false_elim": ["That is a contradiction.", "False gives all."],
    "cases": ["Look at both cases.", "Try each case."],
    "unpack": ["Get {1} from {0}.", "Open {0}."],
    "induct": ["By induction.", "Induct."],
    "fun": ["Assume {shows}.", "Suppose {shows}."],
    "lemma": ["First {shows}.", "Prove {shows}."],
    "all": ["Take any {0}.", "Let {0} be given."],
}
_MOST_BLOCKS = 3


@dataclass(frozen=True)
class Attempt:
    """A theorem, the lines of a proof, and the completion that writes them."""

    theorem: Theorem
    lines: tuple[Line, ...]
    completion: str

    @property
    def code(self) -> str:
        """The text of the lean4 block."""
        return lean_code(self.theorem, [line.text for line in self.lines])


def lean_code(theorem: Theorem, lines: list[str]) -> str:
    return "\n".join([theorem.statement(), *(f"  {line}" for line in lines)])


def demonstrate(theorem: Theorem, rng: random.Random) -> Attempt:
    """A right proof of `theorem`, laid out in a random style and told in random words."""
    proof = theorem.prove(rng)
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    lines = lay_out(proof, len(theorem.hypotheses) + 1, style, rng)
    opening = rng.choice(_GOAL).format(goal=theorem.goal.lean()) if rng.random() < 0.5 else ""
    return Attempt(theorem, tuple(lines), write(theorem, lines, opening, rng))


def write(theorem: Theorem, lines: list[Line], opening: str, rng: random.Random) -> str:
    """The completion: thinking that starts with `opening` and holds `lines` in tactics blocks."""
    thinking = []
    for index, block in enumerate(_blocks(lines, rng)):
        sentence = _say(block, rng)
        words = f"{opening} {sentence}".strip() if index == 0 else sentence
        body = "\n".join(f"  {line.text}" for line in block)
        thinking.append(f"{words}\n```tactics\n{body}\n```")
    code = lean_code(theorem, [line.text for line in lines])
    return "<think>\n" + "\n".join(thinking) + f"\n</think>\n```lean4\n{code}\n```"


def _blocks(lines: list[Line], rng: random.Random) -> list[list[Line]]:
    """Cut the lines into two blocks, seldom three or one."""
    most = min(len(lines), _MOST_BLOCKS)
    count = min(most, rng.choices([1, 2, 3], [0.2, 0.65, 0.15])[0])
    cuts = sorted(rng.sample(range(1, len(lines)), count - 1))
    return [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]


def _say(block: list[Line], rng: random.Random) -> str:
    """A sentence on what the block does, taken from one of its lines."""
    line = block[0] if rng.random() < 0.7 else block[-1]
    usable = [s for s in _SAY[line.rule] if "{1}" not in s or len(line.mentions) > 1]
    usable = [s for s in usable if "{0}" not in s or line.mentions]
    if not usable:
        return "Go on."
    return rng.choice(usable).format(*line.mentions, shows=line.shows)
