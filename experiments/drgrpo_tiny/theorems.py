"""Seeded theorems for the embedded Lean: families, difficulty, English text, disjoint splits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from core.problems import Problem
from experiments.drgrpo_tiny.families import FAMILIES
from experiments.drgrpo_tiny.formulas import Formula
from experiments.drgrpo_tiny.prover import Proof, prove

LETTERS = "pqrstu"
"""Names of propositions, predicates and individuals alike: a small model learns to copy each letter apart,
and last a letter that few theorems use."""
FUNCTIONS = "fg"
BOUND = "xyz"
_DECLARED = ["Prop", "α → Prop", "Nat → Prop", "α → α", "Nat → Nat", "α", "Nat"]
"""The order of binders in a statement."""
_MOST_MISSES = 1_000  # candidates in a row without a new statement: the family is exhausted


@dataclass(frozen=True)
class Theorem:
    """A statement as formulas: `h1 … hk` prove `hypotheses`; `sorts` maps each free symbol."""

    name: str
    family: str
    sorts: dict[str, str]
    hypotheses: tuple[Formula, ...]
    goal: Formula
    difficulty: int
    """Inferences in the shortest proof that the search found."""

    def named_hypotheses(self) -> list[tuple[str, Formula]]:
        return [(f"h{index}", formula) for index, formula in enumerate(self.hypotheses, start=1)]

    def individuals(self) -> list[str]:
        """Terms that a ∀ can be instantiated with and an Exists witnessed by."""
        named = [symbol for symbol, sort in self.sorts.items() if sort in ("α", "Nat")]
        text = " ".join(formula.lean() for formula in (*self.hypotheses, self.goal))
        literals = sorted({digit for digit in text if digit.isdigit()})
        return named + ["0", "1", "2"][: 3 if literals and self.family == "nat" else 0]

    def statement(self) -> str:
        """`theorem LABEL (binders) : goal :=`, one line.

        The label is the family and two digits of the name: to copy four digits in the right order is a skill
        that a small model would have to learn beside proving.
        """
        parts = [f"theorem {self.name[:-2]}"]
        used = set(self.sorts.values())
        if any("α" in sort for sort in used):
            parts.append("(α : Type)")
        for sort in _DECLARED:
            names = sorted(symbol for symbol, its_sort in self.sorts.items() if its_sort == sort)
            if names:
                parts.append(f"({' '.join(names)} : {sort})")
        parts += [f"({name} : {formula.lean()})" for name, formula in self.named_hypotheses()]
        return f"{' '.join(parts)} : {self.goal.lean()} :="

    def informal(self) -> str:
        """The statement in English."""
        goal = self.goal.english()
        if not self.hypotheses:
            return f"Show that {goal}."
        return f"If {', '.join(f.english() for f in self.hypotheses)}, then {goal}."

    def problem(self) -> Problem:
        return Problem(
            name=self.name,
            statement=self.statement(),
            header="",
            informal=self.informal(),
            source=self.family,
            difficulty=float(self.difficulty),
        )

    def prove(self, rng: random.Random) -> Proof:
        """A proof; `rng` breaks ties, so two calls may differ."""
        proof = prove(self.named_hypotheses(), self.goal, self.individuals(), rng)
        assert proof is not None, f"{self.name} was proved when it was generated"
        return proof

    def renamed(self, rng: random.Random) -> Theorem:
        """The same theorem in other letters, bound ones included."""
        functions = [symbol for symbol, sort in self.sorts.items() if sort in ("α → α", "Nat → Nat")]
        others = [symbol for symbol in self.sorts if symbol not in functions]
        names = dict(zip(others, rng.sample(LETTERS, len(others)), strict=True))
        names |= dict(zip(functions, rng.sample(FUNCTIONS, len(functions)), strict=True))
        names |= dict(zip(BOUND, rng.sample(BOUND, len(BOUND)), strict=True))
        return replace(
            self,
            sorts={names[symbol]: sort for symbol, sort in self.sorts.items()},
            hypotheses=tuple(formula.rename(names) for formula in self.hypotheses),
            goal=self.goal.rename(names),
        )


def canonical(hypotheses: tuple[Formula, ...], goal: Formula, symbols: set[str]) -> str:
    """A text that two statements share if and only if they differ in names alone.

    `symbols` are the free ones; bound x, y, z are renamed too. Numbered by first occurrence.
    """
    names: dict[str, str] = {}
    for formula in (*hypotheses, goal):
        for head in formula.heads():
            if head in symbols or head in BOUND:
                names.setdefault(head, f"#{len(names)}")
    return " ; ".join(formula.rename(names).lean() for formula in (*hypotheses, goal))


def theorems(seed: int, hardest: int, taken: set[str]) -> Iterator[Theorem]:
    """A stream of theorems of at most `hardest` inferences, none with a canonical form in `taken`.

    Families are drawn by their weights. Adds each one's form to `taken`. A family
    without new statements drops out; ValueError when all have.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(FAMILIES, 0)
    active = [family for family in FAMILIES for _ in range(FAMILIES[family].weight)]
    while active:
        family = rng.choice(active)
        theorem = _fresh(family, counts[family], hardest, rng, taken)
        if theorem is None:
            active = [other for other in active if other != family]
            continue
        counts[family] += 1
        yield theorem
    raise ValueError("every family is exhausted: ask for fewer theorems")


def _fresh(family: str, index: int, hardest: int, rng: random.Random, taken: set[str]) -> Theorem | None:
    bounds = FAMILIES[family]
    for _ in range(_MOST_MISSES):
        sorts, hypotheses, goal = bounds.make(rng)
        if len(hypotheses) > bounds.hypotheses:
            continue
        # Left and right are right equally often: else a policy that cannot tell learns to answer "left".
        goal = goal.mirrored(rng)
        hypotheses = tuple(h.mirrored(rng) for h in rng.sample(hypotheses, len(hypotheses)))
        form = canonical(hypotheses, goal, set(sorts))
        if form in taken or goal in hypotheses or len(set(hypotheses)) < len(hypotheses):
            continue
        name = f"{family}{index:04d}"
        theorem = Theorem(name, family, sorts, hypotheses, goal, difficulty=0).renamed(rng)
        if len(theorem.statement()) > bounds.longest:
            continue
        proof = prove(theorem.named_hypotheses(), theorem.goal, theorem.individuals(), rng)
        if proof is not None and 1 <= proof.inferences() <= hardest:
            taken.add(form)
            return replace(theorem, difficulty=proof.inferences())
    return None


def split(seed: int, train: int, heldout: int, hardest: int) -> tuple[list[Theorem], list[Theorem]]:
    """`train` and `heldout` theorems, all distinct up to renaming, from one shuffled stream."""
    stream = theorems(seed, hardest, taken=set())
    drawn = [next(stream) for _ in range(train + heldout)]
    random.Random(seed + 1).shuffle(drawn)
    return drawn[heldout:], drawn[:heldout]
