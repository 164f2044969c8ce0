"""Demonstrations: a proof written out in the recipe's format, in varied but short words."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from core.lean.verdict import LeanMessage
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
    "step": ["Go on.", "Next."],
    "lemma": ["First {shows}.", "Prove {shows}."],
    "all": ["Take any {0}.", "Let {0} be given."],
}
_WRONG_STEP = ["{0} is wrong.", "The step {0} fails.", "{0} does not work."]
_WRONG_END = ["The last line is wrong.", "The end fails.", "The last step does not work."]
_WRONG_PROOF = ["The proof is wrong.", "That fails."]
_SAID = [
    (
        r"has type\s+(.+)\n(?:of sort .*)?but is expected to have type\s+(.+)",
        ["It gives {0}, not {1}.", "We have {0}, not {1}."],
    ),
    (r"Unknown identifier `(\w+)`", ["There is no {0}.", "{0} is not known."]),
    (r"Function expected at\s+(.+)", ["{0} is no function.", "{0} cannot be applied."]),
    (r"Invalid field", ["It has no such part.", "That part is not there."]),
]
"""Pattern of Lean's text → what to say about it."""
_LONGEST_REASON = 60  # characters
_MOST_LINES = 5  # of a block: what the format checks allow in any case


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


def proof_lines(code: str) -> list[str]:
    """The lines of a proof behind its statement, which is one line; the inverse of `lean_code`."""
    return [line.strip() for line in code.split("\n")[1:]]


def demonstrate(theorem: Theorem, rng: random.Random) -> Attempt:
    """A right proof of `theorem`, laid out in a random style and told in random words."""
    proof = theorem.prove(rng)
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    lines = lay_out(proof, len(theorem.hypotheses) + 1, style, rng)
    return Attempt(theorem, tuple(lines), write(theorem, lines, _opening(theorem, rng), rng))


def _opening(theorem: Theorem, rng: random.Random) -> str:
    return rng.choice(_GOAL).format(goal=theorem.goal.lean()) if rng.random() < 0.5 else ""


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


def with_lines(right: Attempt, texts: Sequence[str], rng: random.Random) -> Attempt:
    """The attempt with its proof replaced by `texts`, told as if they were right."""
    known = {line.text.partition(" := ")[0]: line for line in right.lines}
    plain = Line("", "step", (), "")
    lines = [replace(known.get(text.partition(" := ")[0], plain), text=text) for text in texts]
    opening = _opening(right.theorem, rng)
    return Attempt(right.theorem, tuple(lines), write(right.theorem, lines, opening, rng))


def demonstrate_fix(
    right: Attempt, failed_lines: Sequence[str], error: LeanMessage, rng: random.Random
) -> Attempt:
    """The proof of `right` told as the correction of `failed_lines`, whose first error is `error`."""
    opening = name_mistake(failed_lines, error, rng)
    completion = write(right.theorem, list(right.lines), opening, rng)
    return Attempt(right.theorem, right.lines, completion)


def name_mistake(failed_lines: Sequence[str], error: LeanMessage, rng: random.Random) -> str:
    """A sentence or two on what Lean said: which step fails, and on what."""
    index = error.line - 2  # line 1 is the statement
    step = failed_lines[index] if 0 <= index < len(failed_lines) else ""
    if step.startswith("have "):
        place = rng.choice(_WRONG_STEP).format(step.split()[1])
    else:
        place = rng.choice(_WRONG_END if index == len(failed_lines) - 1 else _WRONG_PROOF)
    for pattern, sentences in _SAID:
        if match := re.search(pattern, error.text):
            reason = rng.choice(sentences).format(*match.groups())
            return f"{place} {reason}" if len(reason) <= _LONGEST_REASON else place
    return place


def _blocks(lines: list[Line], rng: random.Random) -> list[list[Line]]:
    """Cut the lines into two blocks, seldom three or one."""
    wanted = rng.choices([1, 2, 3], [0.2, 0.65, 0.15])[0]
    count = max(-(-len(lines) // _MOST_LINES), min(len(lines), wanted))
    while True:
        cuts = sorted(rng.sample(range(1, len(lines)), count - 1))
        blocks = [lines[a:b] for a, b in pairwise([0, *cuts, len(lines)])]
        if max(map(len, blocks)) <= _MOST_LINES:
            return blocks


def _say(block: list[Line], rng: random.Random) -> str:
    """A sentence on what the block does."""
    first, last = block[0], block[-1]
    if rng.random() < 0.3 and (plans := [s for s in _SAY[last.rule] if "{" not in s]):
        return rng.choice(plans)  # says where the block leads, without a name it has yet to give
    fitting = [
        sentence
        for sentence in _SAY[first.rule]
        if sentence.count("{0}") + sentence.count("{1}") <= len(first.mentions)
    ]
    return rng.choice(fitting).format(*first.mentions, shows=first.shows) if fitting else "Go on."
