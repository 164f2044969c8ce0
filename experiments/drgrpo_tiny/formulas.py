"""Formulas of the tiny theorems: one immutable tree, its Lean text, its English text, renaming."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Formula:
    """A head applied to arguments; an atom has none. Binders hold their variable as an atom.

    >>> p, q = Formula("p"), Formula("q")
    >>> Formula("→", (Formula("And", (p, q)), p)).lean()
    'And p q → p'
    """

    head: str
    args: tuple[Formula, ...] = ()

    def lean(self) -> str:
        """Lean source without outer parentheses."""
        if not self.args:
            return self.head
        if self.head == "→":
            left, right = self.args
            bracketed = left.head in ("→", "∀")
            return f"{f'({left.lean()})' if bracketed else left.lean()} → {right.lean()}"
        if self.head == "∀":
            variable, sort, body = self.args
            return f"∀ ({variable.head} : {sort.head}), {body.lean()}"
        if self.head == "Exists":
            variable, body = self.args
            return f"Exists (fun {variable.head} => {body.lean()})"
        return " ".join([self.head, *(argument.lean_argument() for argument in self.args)])

    def lean_argument(self) -> str:
        """Lean source fit to stand as an argument."""
        return f"({self.lean()})" if self.args else self.lean()

    def english(self) -> str:
        """A reading in words; compound parts stand in parentheses."""
        if not self.args:
            return self.head
        if self.head == "∀":
            return f"for all {self.args[0].head}, {self.args[2].english()}"
        if self.head == "Exists":
            return f"for some {self.args[0].head}, {self.args[1].english()}"
        words = {"And": "and", "Or": "or", "→": "implies", "Iff": "iff", "Eq": "equals"}
        if self.head in words:
            left, right = (argument.english_part() for argument in self.args)
            return f"{left} {words[self.head]} {right}"
        if self.head == "Not":
            return f"not {self.args[0].english_part()}"
        if self.head in ("Nat.succ", "Nat.add"):
            terms = (*self.args, Formula("1"))[:2]
            return " + ".join(term.english() for term in terms)
        return " ".join([self.head, *(argument.english_part() for argument in self.args)])

    def english_part(self) -> str:
        compound = self.head in ("And", "Or", "→", "Iff", "Eq", "∀", "Exists")
        compound = compound or self.head.startswith("Nat.")
        return f"({self.english()})" if compound else self.english()

    def rename(self, names: Mapping[str, str]) -> Formula:
        """The formula with every head replaced that `names` maps (free, bound, predicate alike)."""
        arguments = tuple(argument.rename(names) for argument in self.args)
        return Formula(names.get(self.head, self.head), arguments)

    def substitute(self, variable: str, term: Formula) -> Formula:
        """The formula with the atom `variable` replaced; bound names are never reused inside.

        A successor of a literal becomes the next literal.
        """
        if not self.args:
            return term if self.head == variable else self
        arguments = tuple(argument.substitute(variable, term) for argument in self.args)
        if self.head == "Nat.succ" and arguments[0].head.isdigit():
            return Formula(str(int(arguments[0].head) + 1))
        return self if arguments == self.args else Formula(self.head, arguments)

    def mirrored(self, rng: random.Random) -> Formula:
        """The formula with the sides of each ∧, ∨ and ↔ exchanged or not: as true, and as easy to prove."""
        arguments = tuple(argument.mirrored(rng) for argument in self.args)
        exchanged = self.head in ("And", "Or", "Iff") and rng.random() < 0.5
        return Formula(self.head, arguments[::-1] if exchanged else arguments)

    def heads(self) -> Iterator[str]:
        """Every head in reading order."""
        yield self.head
        for argument in self.args:
            yield from argument.heads()

    def computed(self) -> Formula:
        """The term with Nat.add and Nat.succ computed as far as their definitions go."""
        arguments = tuple(argument.computed() for argument in self.args)
        if self.head == "Nat.succ" and arguments[0].head.isdigit():
            return Formula(str(int(arguments[0].head) + 1))
        if self.head == "Nat.add" and arguments[1].head.isdigit():
            result = arguments[0]
            for _ in range(int(arguments[1].head)):
                result = Formula("Nat.succ", (result,)).computed()
            return result
        return Formula(self.head, arguments)


Sequent = tuple[dict[str, str], tuple[Formula, ...], Formula]
"""Sort of each free symbol, hypotheses, goal."""


def sequent(sorts: Mapping[str, str], hypotheses: Sequence[Formula], goal: Formula) -> Sequent:
    """A sequent that declares those symbols of `sorts` that occur."""
    used = {head for formula in (*hypotheses, goal) for head in formula.heads()}
    free = {symbol: sort for symbol, sort in sorts.items() if symbol in used}
    return free, tuple(hypotheses), goal


FALSE = Formula("False")
ZERO = Formula("0")


def conjunction(left: Formula, right: Formula) -> Formula:
    return Formula("And", (left, right))


def disjunction(left: Formula, right: Formula) -> Formula:
    return Formula("Or", (left, right))


def implication(left: Formula, right: Formula) -> Formula:
    return Formula("→", (left, right))


def negation(inner: Formula) -> Formula:
    return Formula("Not", (inner,))


def equivalence(left: Formula, right: Formula) -> Formula:
    return Formula("Iff", (left, right))


def equality(left: Formula, right: Formula) -> Formula:
    return Formula("Eq", (left, right))


def every(variable: str, sort: str, body: Formula) -> Formula:
    return Formula("∀", (Formula(variable), Formula(sort), body))


def some(variable: str, body: Formula) -> Formula:
    return Formula("Exists", (Formula(variable), body))
