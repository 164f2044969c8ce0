"""From a proof tree to lines of term-mode Lean, one inference a line, in one of several styles."""

from __future__ import annotations

import random
from dataclasses import dataclass

from experiments.drgrpo_tiny.prover import Proof

STYLES = {"steps": 0.85, "inline": 0.1, "named": 0.05}
"""How much gets a line of its own: every step; all but projections; the conclusion as well."""


@dataclass(frozen=True)
class Line:
    """One line of a proof and what it does.

    >>> Line("have h4 : p := h1.left", "left", ("h1",), "p").rule
    'left'
    """

    text: str
    rule: str
    mentions: tuple[str, ...]
    """Names that the line's inference stands on, main premise first."""
    shows: str
    """Lean text of what the line proves or assumes."""


def lay_out(proof: Proof, first_free: int, style: str, rng: random.Random) -> list[Line]:
    """Lines that prove `proof.formula`; new names are h{first_free}, h{first_free + 1}, …"""
    return _Layout(first_free, style, rng).lay(proof)


class _Layout:
    def __init__(self, first_free: int, style: str, rng: random.Random) -> None:
        self.next_index = first_free
        self.style = style
        self.rng = rng
        self.projection = rng.random() < 0.05  # `And.left h` rather than `h.left`
        self.brackets = rng.random() < 0.05  # `⟨h, k⟩` rather than `And.intro h k`
        self.lines: list[Line] = []
        self.display: dict[str, str] = {}  # a binder's placeholder → its name in the text
        self.named: dict[Proof, str] = {}

    def lay(self, proof: Proof) -> list[Line]:
        while proof.rule in ("fun", "all", "unpack"):
            proof = self._open(proof)
        if proof.rule != "name":
            self._name_parts(proof)
        if self.style == "named" and proof.rule != "name":
            self._have(proof)
        shows = proof.formula.lean()
        if proof in self.named:
            name = self.named[proof]
            self.lines.append(Line(name, "name", (name,), shows))
        else:
            text = self._express(proof)
            self.lines.append(Line(text, proof.rule, self._mentions(proof), shows))
        return self.lines

    def _fresh(self) -> str:
        self.next_index += 1
        return f"h{self.next_index - 1}"

    def _open(self, proof: Proof) -> Proof:
        """Emit the line that brings a binder into scope; return the proof under it."""
        if proof.rule == "all":
            text = f"fun {proof.binder} =>"
            self.lines.append(Line(text, "all", (proof.binder,), proof.parts[0].formula.lean()))
            return proof.parts[0]
        if proof.rule == "fun":
            name = self.display[proof.binder] = self._fresh()
            assumed = proof.formula.args[0].lean()
            self.lines.append(Line(f"fun ({name} : {assumed}) =>", "fun", (name,), assumed))
            return proof.parts[0]
        exists, body = proof.parts
        self._ensure(exists)
        premise = self._refer(exists)
        name = self.display[proof.binder] = self._fresh()
        text = f"Exists.elim {premise} fun {proof.text} {name} =>"
        self.lines.append(Line(text, "unpack", (premise, proof.text), exists.formula.lean()))
        return body

    def _name_parts(self, proof: Proof) -> None:
        parts = list(proof.parts)
        if self.rng.random() < 0.05:
            parts.reverse()
        for part in parts:
            self._ensure(part)

    def _ensure(self, proof: Proof) -> None:
        """Give `proof` a line of its own unless it is a name, has one, or the style inlines it."""
        if proof.rule in ("name", "rfl") or proof in self.named:
            return
        if proof.rule == "inst" and proof.formula.head in ("→", "∀"):
            self._name_parts(proof)
            return
        if self.style == "inline" and proof.rule in ("left", "right", "fun", "symm", "inst"):
            if proof.rule != "fun":
                self._name_parts(proof)
            return
        if proof.rule not in ("fun", "all"):
            self._name_parts(proof)
        self._have(proof)

    def _have(self, proof: Proof) -> None:
        expression = self._express(proof)
        name = self._fresh()
        shows = proof.formula.lean()
        text = f"have {name} : {shows} := {expression}"
        rule = "lemma" if proof.rule == "fun" else proof.rule
        self.lines.append(Line(text, rule, self._mentions(proof), shows))
        self.named[proof] = name

    def _mentions(self, proof: Proof) -> tuple[str, ...]:
        if proof.rule == "name":
            return (self._refer(proof),)
        main = tuple(self._refer(part) for part in proof.parts)
        return (*(m for m in main if " " not in m), *([proof.text] if proof.text else []))

    def _refer(self, proof: Proof) -> str:
        """How another expression names `proof`: its name, or its expression, bracketed if long."""
        if proof in self.named:
            return self.named[proof]
        expression = self._express(proof)
        return f"({expression})" if " " in expression and expression[0] != "⟨" else expression

    def _express(self, proof: Proof) -> str:
        if proof.rule == "name":
            return self.display.get(proof.text, proof.text)
        if proof.rule in ("fun", "all"):
            return self._function(proof)
        if proof.rule == "unpack":
            return self._inline_unpack(proof)
        parts = [self._refer(part) for part in proof.parts]
        if proof.rule in ("left", "right"):
            if self.projection or parts[0].startswith("("):
                return f"And.{proof.rule} {parts[0]}"
            return f"{parts[0]}.{proof.rule}"
        if proof.rule in ("mp", "mpr", "symm", "trans"):
            return " ".join([f"{parts[0]}.{proof.rule}", *parts[1:]])
        if proof.rule == "and" and self.brackets:
            return f"⟨{parts[0]}, {parts[1]}⟩"
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

    def _function(self, proof: Proof) -> str:
        """A function on one line; what it assumes is called hx, hy, hz by depth."""
        if proof.rule == "all":
            return f"fun {proof.binder} => {self._express(proof.parts[0])}"
        taken = set(self.display.values())
        name = next(n for n in ("hx", "hy", "hz", "hw", "hv") if n not in taken)
        self.display[proof.binder] = name
        text = f"fun {name} => {self._express(proof.parts[0])}"
        del self.display[proof.binder]
        return text

    def _inline_unpack(self, proof: Proof) -> str:
        exists, body = proof.parts
        premise = self._refer(exists)
        taken = set(self.display.values())
        name = next(n for n in ("hx", "hy", "hz", "hw", "hv") if n not in taken)
        self.display[proof.binder] = name
        text = f"Exists.elim {premise} (fun {proof.text} {name} => {self._express(body)})"
        del self.display[proof.binder]
        return text
