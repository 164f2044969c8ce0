"""From proofs to lines of term-mode Lean, in two ways of working: from the goal, or from what is given."""

from __future__ import annotations

import random

from experiments.drgrpo_tiny.formulas import FALSE, Formula
from experiments.drgrpo_tiny.prover import Proof, derivable, prove

_MOST_FACTS = 4  # that are written down before a forward proof is closed
_FACTS = {"left", "right", "app", "mp", "mpr", "inst"}  # inferences that forward working writes down
Hypotheses = list[tuple[str, Formula]]


def lay_out(proof: Proof, first_free: int) -> list[str]:
    """Lines that prove `proof.formula` from the goal: what it assumes, then one expression.

    New names are h{first_free}, h{first_free + 1}, …
    """
    return _Layout(first_free).lay(proof)


def lay_out_forward(
    hypotheses: Hypotheses, goal: Formula, individuals: list[str], rng: random.Random
) -> list[str]:
    """Lines that prove `goal` from what is given: facts that follow, needed or not, then the goal.

    AssertionError if the search finds no proof from there, which cannot be where `prove` found one.
    """
    layout = _Layout(len(hypotheses) + 1)
    known = list(hypotheses)
    while goal.head in ("→", "Not"):
        known.append((layout.assume(goal.args[0]), goal.args[0]))
        goal = goal.args[1] if goal.head == "→" else FALSE
    for _ in range(_MOST_FACTS):
        reached = any(formula == goal for _, formula in known)
        fact = None if reached else _next_fact(known, individuals, rng)
        if fact is None:
            break
        known.append((layout.have(fact), fact.formula))
    proof = prove(known, goal, individuals, rng)
    assert proof is not None, f"{goal.lean()} does not follow any more from {known}"
    return layout.lay(proof)


def _next_fact(known: Hypotheses, individuals: list[str], rng: random.Random) -> Proof | None:
    """One inference from `known` to something new."""
    taken = {formula for _, formula in known}
    for formula, proof in derivable(known, individuals, rng).items():
        at_once = all(part.rule == "name" for part in proof.parts)
        if proof.rule in _FACTS and at_once and formula not in taken:
            return proof
    return None


class _Layout:
    """The lines so far and the names that they introduced."""

    def __init__(self, first_free: int) -> None:
        self.next_index = first_free
        self.lines: list[str] = []
        self.display: dict[str, str] = {}  # a binder's placeholder → its name in the text
        self.named: dict[Proof, str] = {}

    def lay(self, proof: Proof) -> list[str]:
        while proof.rule in ("fun", "all", "unpack"):
            proof = self._open(proof)
        self._name_parts(proof)
        self.lines.append(self._express(proof))
        return self.lines

    def assume(self, formula: Formula) -> str:
        """A line that assumes `formula`; returns its new name."""
        name = self._fresh()
        self.lines.append(f"fun ({name} : {formula.lean()}) =>")
        return name

    def have(self, proof: Proof) -> str:
        """A line of its own for `proof`; returns its new name."""
        expression = self._express(proof)
        name = self.named[proof] = self._fresh()
        self.lines.append(f"have {name} : {proof.formula.lean()} := {expression}")
        return name

    def _fresh(self) -> str:
        self.next_index += 1
        return f"h{self.next_index - 1}"

    def _open(self, proof: Proof) -> Proof:
        """Emit the line that brings a binder into scope; return the proof under it."""
        if proof.rule == "all":
            self.lines.append(f"fun {proof.binder} =>")
            return proof.parts[0]
        if proof.rule == "fun":
            self.display[proof.binder] = self.assume(proof.formula.args[0])
            return proof.parts[0]
        exists, body = proof.parts
        self._name_parts(exists)
        premise = self._refer(exists)
        name = self.display[proof.binder] = self._fresh()
        self.lines.append(f"Exists.elim {premise} fun {proof.text} {name} =>")
        return body

    def _name_parts(self, proof: Proof) -> None:
        """Give a line to each part whose statement Lean cannot guess from where it stands."""
        if proof.rule in ("name", "fun", "all"):
            return
        for part in proof.parts:
            self._name_parts(part)
            if part.rule in ("subst", "induct") and part not in self.named:
                self.have(part)

    def _refer(self, proof: Proof) -> str:
        """How another expression names `proof`: its name, or its expression, bracketed if long."""
        if proof in self.named:
            return self.named[proof]
        expression = self._express(proof)
        return f"({expression})" if " " in expression else expression

    def _express(self, proof: Proof) -> str:
        if proof.rule == "name":
            return self.display.get(proof.text, proof.text)
        if proof.rule == "all":
            return f"fun {proof.binder} => {self._express(proof.parts[0])}"
        if proof.rule == "fun":
            return self._under(proof.binder, "fun {0} => {1}", proof.parts[0])
        if proof.rule == "unpack":
            text = f"Exists.elim {self._refer(proof.parts[0])} (fun {proof.text} {{0}} => {{1}})"
            return self._under(proof.binder, text, proof.parts[1])
        parts = [self._refer(part) for part in proof.parts]
        if proof.rule in ("left", "right"):
            bracketed = parts[0].startswith("(")
            return f"And.{proof.rule} {parts[0]}" if bracketed else f"{parts[0]}.{proof.rule}"
        if proof.rule in ("mp", "mpr", "symm", "trans"):
            return " ".join([f"{parts[0]}.{proof.rule}", *parts[1:]])
        if proof.rule in ("app", "inst") and proof.parts[0].rule == "inst":
            parts[0] = parts[0].strip("()")
        words = {
            "app": [],
            "inst": [],
            "and": ["And.intro"],
            "inl": ["Or.inl"],
            "inr": ["Or.inr"],
            "iff": ["Iff.intro"],
            "cases": ["Or.elim"],
            "absurd": ["absurd"],
            "false_elim": ["False.elim"],
            "exists": ["Exists.intro", proof.text],
            "congr": ["congrArg", proof.text],
            "subst": ["Eq.subst"],
            "rfl": ["rfl"],
            "induct": ["Nat.rec"],
        }[proof.rule]
        last = [proof.text] if proof.rule in ("inst", "induct") else []
        return " ".join([*words, *parts, *last])

    def _under(self, binder: str, text: str, body: Proof) -> str:
        """`text` with the binder's name and the body; what is assumed inside a line is hx, hy, … by depth."""
        taken = set(self.display.values())
        name = next(n for n in ("hx", "hy", "hz", "hw", "hv") if n not in taken)
        self.display[binder] = name
        expression = text.format(name, self._express(body))
        del self.display[binder]
        return expression
