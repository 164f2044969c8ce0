"""A small proof search: forward chaining over the hypotheses, introduction rules for the goal, cases.

A proof is a tree of inferences (`Proof`); `demonstrations.py` lays it out as lines of Lean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.drgrpo_tiny.formulas import FALSE, ZERO, Formula, equality, implication

ROUNDS = 5  # levels of forward chaining: the longest chain of eliminations that is found
MAX_FACTS = 60  # transitivity alone could derive quadratically many equations


@dataclass(frozen=True, slots=True)
class Proof:
    """One inference: `rule` applied to sub-proofs, proving `formula`.

    Rules: name (a hypothesis), left, right, app, inst (of ∀), mp, mpr, symm, trans, congr, subst,
    and, inl, inr, iff, exists, rfl, absurd, false_elim, cases (of Or), unpack (of Exists), induct,
    fun (binds `binder`, assumes the left side of `formula`), all (binds an individual).
    """

    rule: str
    formula: Formula
    parts: tuple[Proof, ...] = ()
    text: str = ""
    """The name for `name`, the witness or argument for exists and inst, the function for congr."""
    binder: str = ""
    """The name that fun, all and unpack bind; unpack binds its individual in `text`."""

    def inferences(self) -> int:
        """Number of rule applications, hypotheses not counted."""
        return (self.rule != "name") + sum(part.inferences() for part in self.parts)

    def names(self) -> Iterator[str]:
        """Every hypothesis or binder that the proof uses."""
        if self.rule == "name":
            yield self.text
        for part in self.parts:
            yield from part.names()


Facts = dict[Formula, Proof]


def prove(
    hypotheses: list[tuple[str, Formula]], goal: Formula, individuals: list[str], rng: random.Random
) -> Proof | None:
    """A proof of `goal`, with few inferences and ties broken by `rng`; None if the search finds none.

    `hypotheses` may hold facts that an attempt has already derived, so a proof can be completed.
    """
    return _Search(individuals, rng).solve(_as_facts(hypotheses), goal, depth=3)


def derivable(hypotheses: list[tuple[str, Formula]], individuals: list[str], rng: random.Random) -> Facts:
    """Everything that forward chaining derives, the hypotheses included."""
    facts = _as_facts(hypotheses)
    _Search(individuals, rng).saturate(facts)
    return facts


def _as_facts(hypotheses: list[tuple[str, Formula]]) -> Facts:
    return {formula: Proof("name", formula, text=name) for name, formula in reversed(hypotheses)}


class _Search:
    """One search; holds the individuals in scope, the randomness and the count of binders."""

    def __init__(self, individuals: list[str], rng: random.Random) -> None:
        self.individuals = individuals
        self.rng = rng
        self.binders = 0

    def solve(self, facts: Facts, goal: Formula, depth: int) -> Proof | None:
        """Prove `goal` by introductions, then chaining, then contradiction, then cases."""
        if goal in facts:
            return facts[goal]
        if goal.head in ("→", "Not"):
            return self._introduce(facts, goal, depth)
        if goal.head == "∀":
            return self._generalise(facts, goal, depth)
        facts = dict(facts)
        self.saturate(facts)
        return (
            self.build(facts, goal, depth)
            or self._induct_at(facts, goal)
            or self._contradiction(facts, goal)
            or (self._cases(facts, goal, depth) if depth > 0 else None)
        )

    def build(self, facts: Facts, goal: Formula, depth: int) -> Proof | None:
        """Prove `goal` from saturated facts by introduction rules alone."""
        if goal in facts:
            return facts[goal]
        if goal.head == "And":
            return self._pair("and", facts, goal, goal.args, depth)
        if goal.head == "Iff":
            left, right = goal.args
            sides = (implication(left, right), implication(right, left))
            return self._pair("iff", facts, goal, sides, depth)
        if goal.head == "Or":
            sides = [("inl", goal.args[0]), ("inr", goal.args[1])]
            self.rng.shuffle(sides)
            for rule, side in sides:
                if part := self.build(facts, side, depth):
                    return Proof(rule, goal, (part,))
        if goal.head == "Eq":
            return self._equal(facts, goal)
        if goal.head == "Exists":
            for witness in self.individuals:
                instance = goal.args[1].substitute(goal.args[0].head, Formula(witness))
                if part := self.build(facts, instance, depth):
                    return Proof("exists", goal, (part,), text=witness)
        if goal.head in ("→", "Not", "∀") and depth > 0:
            return self.solve(facts, goal, depth - 1)
        return None

    def _pair(
        self, rule: str, facts: Facts, goal: Formula, sides: tuple[Formula, ...], depth: int
    ) -> Proof | None:
        parts = []
        for side in sides:
            part = self.build(facts, side, depth)
            if part is None:
                return None
            parts.append(part)
        return Proof(rule, goal, tuple(parts))

    def _equal(self, facts: Facts, goal: Formula) -> Proof | None:
        left, right = goal.args
        if left.computed() == right.computed():
            return Proof("rfl", goal)
        if left.head == right.head and len(left.args) == len(right.args) == 1:
            inner = self.build(facts, equality(left.args[0], right.args[0]), 0)
            if inner:
                return Proof("congr", goal, (inner,), text=left.head)
        return None

    def _introduce(self, facts: Facts, goal: Formula, depth: int) -> Proof | None:
        self.binders += 1
        binder = f"?{self.binders}"
        assumption = goal.args[0]
        conclusion = goal.args[1] if goal.head == "→" else FALSE
        inner = {assumption: Proof("name", assumption, text=binder), **facts}
        body = self.solve(inner, conclusion, depth)
        return Proof("fun", goal, (body,), binder=binder) if body else None

    def _generalise(self, facts: Facts, goal: Formula, depth: int) -> Proof | None:
        variable, _, body = goal.args
        if variable.head in self.individuals:
            return None
        self.individuals.append(variable.head)
        proof = self.solve(facts, body, depth) or _induct(facts, variable, body)
        self.individuals.remove(variable.head)
        return Proof("all", goal, (proof,), binder=variable.head) if proof else None

    def _induct_at(self, facts: Facts, goal: Formula) -> Proof | None:
        for individual in self.individuals:
            if goal.args == (Formula(individual),) and not individual.isdigit():
                return _induct(facts, goal.args[0], goal)
        return None

    def _contradiction(self, facts: Facts, goal: Formula) -> Proof | None:
        if FALSE in facts:
            if goal == FALSE:
                return facts[FALSE]
            proof = facts[FALSE]
            if proof.rule == "app" and self.rng.random() < 0.5:
                return Proof("absurd", goal, (proof.parts[1], proof.parts[0]))
            return Proof("false_elim", goal, (proof,))
        return None

    def _cases(self, facts: Facts, goal: Formula, depth: int) -> Proof | None:
        for fact, proof in facts.items():
            if fact.head == "Or":
                rest = {f: p for f, p in facts.items() if f != fact}
                branches = []
                for side in fact.args:
                    branch = self.solve(rest, implication(side, goal), depth - 1)
                    if branch is None:
                        break
                    branches.append(branch)
                if len(branches) == 2 and not all(_vacuous(branch) for branch in branches):
                    return Proof("cases", goal, (proof, *branches))
            if fact.head == "Exists" and (unpacked := self._unpack(facts, proof, goal, depth)):
                return unpacked
        return None

    def _unpack(self, facts: Facts, proof: Proof, goal: Formula, depth: int) -> Proof | None:
        fact = proof.formula
        variable = fact.args[0].head
        if variable in self.individuals:
            return None
        self.binders += 1
        binder = f"?{self.binders}"
        witness = fact.args[1]
        inner = {f: p for f, p in facts.items() if f != fact}
        inner[witness] = Proof("name", witness, text=binder)
        self.individuals.insert(0, variable)
        body = self.solve(inner, goal, depth - 1)
        self.individuals.remove(variable)
        if body is None:
            return None
        return Proof("unpack", goal, (proof, body), text=variable, binder=binder)

    def saturate(self, facts: Facts) -> None:
        """Add what eliminations derive, level by level, so that the first proof found is shallow."""
        for _ in range(ROUNDS):
            fresh: list[Proof] = []
            known = list(facts.values())
            self.rng.shuffle(known)
            for proof in known:
                fresh.extend(p for p in self._eliminate(facts, proof) if p.formula not in facts)
            if not fresh or len(facts) > MAX_FACTS:
                return
            for proof in fresh:
                facts.setdefault(proof.formula, proof)

    def _eliminate(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        fact = proof.formula
        rule: Callable[[Facts, Proof], Iterator[Proof]] | None = {
            "And": self._project,
            "→": self._apply,
            "Not": self._apply,
            "Iff": self._apply_iff,
            "Eq": self._chain,
            "∀": self._instantiate,
        }.get(fact.head)
        if rule:
            yield from rule(facts, proof)

    def _project(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        left, right = proof.formula.args
        yield Proof("left", left, (proof,))
        yield Proof("right", right, (proof,))

    def _apply(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        fact = proof.formula
        conclusion = fact.args[1] if fact.head == "→" else FALSE
        if conclusion in facts:
            return
        if argument := self.build(facts, fact.args[0], 0):
            yield Proof("app", conclusion, (proof, argument))

    def _apply_iff(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        left, right = proof.formula.args
        for rule, start, end in (("mp", left, right), ("mpr", right, left)):
            if end not in facts and (argument := self.build(facts, start, 0)):
                yield Proof(rule, end, (proof, argument))

    def _chain(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        left, right = proof.formula.args
        if proof.rule != "symm":
            yield Proof("symm", equality(right, left), (proof,))
        for other in list(facts.values()):
            if other.formula.head == "Eq" and other.formula.args[0] == right != left:
                end = other.formula.args[1]
                if end != left:
                    yield Proof("trans", equality(left, end), (proof, other))
            elif other.formula.args == (left,) and other.formula.head not in ("Not", "False"):
                moved = Formula(other.formula.head, (right,))
                yield Proof("subst", moved, (proof, other))

    def _instantiate(self, facts: Facts, proof: Proof) -> Iterator[Proof]:
        variable, _, body = proof.formula.args
        for individual in self.individuals:
            instance = body.substitute(variable.head, Formula(individual))
            yield Proof("inst", instance, (proof,), text=individual)


def _induct(facts: Facts, variable: Formula, body: Formula) -> Proof | None:
    """Induction on `variable`: the base and the step are facts."""
    base = facts.get(body.substitute(variable.head, ZERO))
    following = body.substitute(variable.head, Formula("Nat.succ", (variable,)))
    for fact, step in facts.items():
        if base and fact.head == "∀" and fact.args[1].head == "Nat":
            bound, _, inner = fact.args
            if inner.substitute(bound.head, variable) == implication(body, following):
                return Proof("induct", body, (base, step), text=variable.head)
    return None


def _vacuous(branch: Proof) -> bool:
    """Whether a case never uses its assumption, which makes the case split pointless."""
    return branch.rule == "fun" and branch.binder not in set(branch.parts[0].names())
