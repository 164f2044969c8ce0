"""The scan refuses each cheat by its rule and at its place, and no honest proof."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lean_cheats import CHEATS, FALSE

from core.lean.assemble import own_text
from core.lean.scan import WORD_RULES, Refusal, scan
from core.problems import Problem

DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.parametrize(("rule", "code"), [c[1:] for c in CHEATS], ids=[c[0] for c in CHEATS])
def test_cheats_are_refused_by_their_rule(rule, code):
    refusal = scan(code, FALSE)
    assert (refusal.rule if refusal else "") == rule


def test_there_are_enough_cheats_and_all_are_different():
    assert len({name for name, _, _ in CHEATS}) == len(CHEATS) == len({code for _, _, code in CHEATS}) >= 100


def test_a_refusal_says_where_and_why():
    code = "theorem goal :\n  -- no axiom here\n  x := by\n    sorry"
    assert scan(code, FALSE) == Refusal("sorry", 4, 4, "`sorry` leaves the proof open")
    forged = scan("theorem 𝒳 :\n  ∀ \u2066x", FALSE)
    assert (forged.line, forged.column) == (2, 4)  # in code points: `𝒳` is one


@pytest.mark.parametrize("word", sorted(w for rule in WORD_RULES for w in rule.words))
def test_a_word_is_refused_as_code_and_only_as_code(word):
    assert scan(f"theorem goal : p := ({word})", FALSE) is not None
    for honest in (f"-- {word}", f"/- {word} -/", f'"{word}"', f"x_{word.strip('#?!%')}y", "x.y"):
        assert scan(f"theorem goal : p := h {honest}", FALSE) is None


@pytest.mark.parametrize(
    "code",
    [
        "theorem help (p : Prop) (h : p) : p := h\n\ntheorem goal : q := help q h",
        "lemma axiomatic : p := by\n  have sorryless : True := trivial\n  exact h.sorry",
        "theorem goal : p := by\n  -- sorry, no axiom\n  /- nested /- comment -/ sorry -/ exact h",
        "\t theorem\n\n  goal\n :\n p\r\n :=\n\n\n  h",
        "@[simp] theorem help : p := h\n@[simp, norm_cast] theorem goal : p := h",
        "set_option maxHeartbeats 400000 in\ntheorem goal : p := h",
        "set_option maxRecDepth 1000\nopen Nat Real in\ntheorem goal : p := h",
        "namespace Foo\ntheorem help : p := h\nend Foo\n\nsection\nopen Foo\ntheorem goal : p := help\nend",
        "namespace A.B\nend A.B\nnamespace C.D\nend D\nend C",
        "noncomputable section\ntheorem goal : p := h",
        "theorem goal : #s = 1 ∧ xs[0]? = none ∧ l.head? = some α ∧ √(π) ≤ Σ x, Λ x := by norm_num",
        "theorem goal : p := by\n  · simp only [h₁, Nat.add_comm]\n  · native_decide",
        "theorem goal : \"sorry\".length = 5 ∧ '\"' ≠ 'x' := by decide",
        "theorem goal : a.stop = b.prefix := by rfl",
    ],
)
def test_honest_texts_pass(code):
    assert scan(code, FALSE) is None


def test_what_the_statement_itself_uses_is_no_cheat():
    statement = "@[my_attr] theorem goal («x y» : ℝ) (Χ : Set ℝ) : Χ «x y» := by"
    given_ = Problem("goal", statement, "set_option pp.all true", "", "test")
    code = f"set_option pp.all true\n{statement}\n  simp"
    assert scan(code, given_) is None
    assert scan(code, FALSE) is not None


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not here")
def test_no_proof_of_kimina_prover_is_refused():
    problems = {}
    for line in (DATA / "minif2f.jsonl").read_text().splitlines():
        row = json.loads(line)
        problems[row["name"]] = Problem(row["name"], row["formal_statement"], row["header"], "", "minif2f")
    proofs = [json.loads(line) for line in (DATA / "kimina_minif2f_proofs.jsonl").read_text().splitlines()]
    refused = {}
    for proof in proofs:
        problem = problems[proof["name"]]
        refusal = scan(own_text(proof["code"], problem), problem)
        if refusal:
            refused[proof["name"]] = refusal
    assert refused == {}
    assert len(proofs) == 112


@given(st.text(max_size=200))
def test_no_text_breaks_the_scan(code):
    refusal = scan(code, FALSE)
    if refusal is not None:
        assert 1 <= refusal.line <= code.count("\n") + 1
        assert 0 <= refusal.column <= len(code.split("\n")[refusal.line - 1])
