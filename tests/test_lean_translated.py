"""The assembly proved with a real Lean, for each shape of statement and proof that problems and models have.

The shapes are those of miniF2F and of Kimina-Prover's proofs, in the embedded Lean's own language: `lemma`, infix
notation and every tactic that can close a goal are declared by Init and Mathlib: of those the text alone is tested,
on Kimina-Prover's 112 proofs.
"""

# ruff: noqa: E501
from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.format_checks.lexer import significant_tokens
from core.lean.assemble import ALLOWED_AXIOMS, make_file, make_piece, own_text, split_statement
from core.lean.embedded import EmbeddedLean
from core.lean.verdict import LeanCheck, Verdict
from core.problems import Problem

DATA = Path(__file__).parents[2] / "shared" / "data"
DOUBLE = "def double (n : Nat) : Nat := Nat.add n n"

# name: header, statement, the model's text (`…` stands for the statement)
SHAPES = {
    "binders": ("", "theorem t (p q : Prop) (h : And p q) : And q p :=", "… ⟨h.2, h.1⟩"),
    "no binders": ("", "theorem t : ∀ p : Prop, p → p :=", "… fun _ h => h"),
    "implicit arguments": ("", "theorem t {p q : Prop} (h : And p q) : q :=", "… h.2"),
    "strict implicit": ("", "theorem t ⦃p : Prop⦄ (h : p) : p :=", "… h"),
    "instance arguments": (
        "",
        "theorem t (p : Prop) [d : Decidable p] : Or p (Not p) :=",
        "…\n  match d with\n  | .isTrue h => .inl h\n  | .isFalse h => .inr h",
    ),
    "unnamed instance": ("", "theorem t (n : Nat) [OfNat Nat n] : Eq n n :=", "… rfl"),
    "default argument": ("", "theorem t (n : Nat := 3) (h : Eq n n := rfl) : Eq n n :=", "… h"),
    "universes": ("", "theorem t.{u} (A : Sort u) (a : A) : Eq a a :=", "… rfl"),
    "several of a type": ("", "theorem t (a b c : Nat) (h₁ : Eq a b) (h₂ : Eq b c) : Eq a c :=", "… h₁.trans h₂"),
    "dotted name": ("", "theorem And.turn (p q : Prop) (h : And p q) : And q p :=", "… ⟨h.2, h.1⟩"),
    "let in the conclusion": ("", "theorem t (n : Nat) : let m := Nat.add n 0; Eq m n :=", "… rfl"),
    "arrows in the conclusion": ("", "theorem t (p q : Prop) : (h : p) → q → And p q :=", "… fun a b => ⟨a, b⟩"),
    "ends in by": ("", "theorem t (p : Prop) (h : p) : p := by", "theorem t (p : Prop) (h : p) : p := h"),
    "ends in sorry": ("", "theorem t (p : Prop) (h : p) : p := by sorry", "theorem t (p : Prop) (h : p) : p := h"),
    "attribute of the problem": ("", "@[elab_without_expected_type] theorem t (p : Prop) (h : p) : p :=", "… h"),
    "docstring of the problem": ("", "/-- says := this -/\ntheorem t (p : Prop) (h : p) : p :=", "… h"),
    "docstring of the model": ("", "theorem t (p : Prop) (h : p) : p :=", "/-- clear -/\n… h"),
    "header": ("open And\nset_option maxRecDepth 2000", "theorem t (p q : Prop) (h : And p q) : q :=", "… right h"),
    "definition brought along": (
        "",
        f"{DOUBLE}\n\ntheorem t (n : Nat) : Eq (double n) (Nat.add n n) :=",
        "… rfl",
    ),
    "definition not repeated": (
        "",
        f"{DOUBLE}\ntheorem t (n : Nat) : Eq (double n) (Nat.add n n) :=",
        "theorem t (n : Nat) : Eq (double n) (Nat.add n n) := rfl",
    ),
    "theorem brought along": (
        "",
        "theorem first (p : Prop) (h : p) : p := h\n\ntheorem t (p : Prop) (h : p) : And p p :=",
        "… ⟨first p h, h⟩",
    ),
    "several theorems": (
        "",
        "theorem t (p q : Prop) (h : And p q) : And q p :=",
        "theorem l (p q : Prop) (h : And p q) : q := h.2\ntheorem r (p q : Prop) (h : And p q) : p := h.1\n"
        "… ⟨l p q h, r p q h⟩\ntheorem after : True := True.intro",
    ),
    "helper definition": ("", "theorem t (n : Nat) : Eq n n :=", "def keep (n : Nat) : Nat := n\n… (rfl : Eq (keep n) n)"),
    "helper with the problem's words": ("", "theorem t (p : Prop) (h : p) : p :=", "theorem t.help (p : Prop) (h : p) : p := h\n… t.help p h"),
    "namespace of its own": ("", "theorem t (p : Prop) (h : p) : p :=", "namespace A\ntheorem a (p : Prop) (h : p) : p := h\nend A\n… A.a p h"),
    "section of its own": ("", "theorem t (p : Prop) (h : p) : p :=", "section\ntheorem a (p : Prop) (h : p) : p := h\nend\n… a p h"),
    "match": ("", "theorem t (p q : Prop) : Or p q → Or q p :=", "theorem t (p q : Prop) : Or p q → Or q p\n  | .inl h => .inr h\n  | .inr h => .inl h"),
    "recursion": ("", "theorem t (n : Nat) : Eq (Nat.add 0 n) n :=", "…\n  match n with\n  | 0 => rfl\n  | Nat.succ n => congrArg Nat.succ (t n)"),
    "have chain": ("", "theorem t (p q : Prop) (h : And p q) : And q p :=", "…\n  have hp : p := h.1\n  have hq : q := h.2\n  show And q p from ⟨hq, hp⟩"),
    "structure instance": ("", "theorem t (p q : Prop) (h : And p q) : And q p :=", "theorem t (p q : Prop) (h : And p q) : And q p where\n  left := h.2\n  right := h.1"),
    "statement in other words": ("", "theorem t (p q : Prop) (h : And p q) : q :=", "theorem t : ∀ {a b : Prop}, And a b → b := fun h => h.2"),
    "imports that are ours": ("", "theorem t (p : Prop) (h : p) : p :=", "\n\n… h\n\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def lean():
    verifier = EmbeddedLean(
        workers=2, batch_size=16, timeout_s=200.0, memory_mb=512, max_output_bytes=400_000, cache_entries=0
    )
    yield verifier
    verifier.close()


def checks(name: str) -> tuple[LeanCheck, LeanCheck]:
    """The shape's check, and the same text under a statement that it does not prove."""
    header, statement, code = SHAPES[name]
    ending = statement[: statement.rindex(":=") + 2]
    code = code.replace("…", ending)
    parts = split_statement(statement)
    before, _, after = statement.rpartition(parts.conclusion)
    other = f"{before}And True ({parts.conclusion}){after}"
    return tuple(LeanCheck(name, Problem(parts.name, s, header, "", ""), code) for s in (statement, other))


def test_every_shape_is_proved_and_never_as_another_statement(lean):
    futures = {name: tuple(map(lean.submit, checks(name))) for name in SHAPES}
    found = {name: tuple(future.result() for future in pair) for name, pair in futures.items()}
    wrong = {
        name: (pair[0].messages or pair[0].rule, pair[1].verdict)
        for name, pair in found.items()
        if (pair[0].verdict, pair[1].verdict) != (Verdict.PROVED, Verdict.FAILED)
    }
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def kimina() -> list[LeanCheck]:
    problems = {}
    for line in (DATA / "minif2f.jsonl").read_text().splitlines():
        row = json.loads(line)
        problems[row["name"]] = Problem(row["name"], row["formal_statement"], row["header"], "", "")
    rows = map(json.loads, (DATA / "kimina_minif2f_proofs.jsonl").read_text().splitlines())
    return [LeanCheck(row["name"], problems[row["name"]], row["code"]) for row in rows]


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not here")
def test_every_proof_of_kimina_prover_assembles():
    """Without Mathlib none can be proved here; that each stands whole in its file is shown."""
    native = 0
    for check in kimina():
        code = own_text(check.code, check.problem)
        tokens = [token.text for token in significant_tokens(code)]
        assert "import" not in tokens  # the header's own are blanked
        piece = make_piece(check, code, "0" * 32, alone=True)
        file = make_file(check.problem.header, [piece], "1" * 32)
        lines = file.text.split("\n")
        start = file.starts[0] + piece.code_line - 2
        assert "\n".join(lines[start:]).startswith(code.rstrip("\n") + "\n")
        assert piece.name == check.id
        assert tokens[tokens.index(check.id) - 1] in ("theorem", "lemma")
        statement = split_statement(check.problem.statement)
        given = [t.text for t in significant_tokens(f"{statement.binders} {statement.conclusion}")]
        ours = [t.text for t in significant_tokens(piece.text.split("#check")[0])]
        assert all(ours.count(word) >= given.count(word) for word in set(given))
        native += "native_decide" in tokens
    assert len(kimina()) == 112
    assert native == 5  # the scan lets them pass; their axiom is not one of the three
    assert not any("native" in axiom or "ofReduce" in axiom for axiom in ALLOWED_AXIOMS)
