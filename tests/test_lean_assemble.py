"""Statements split as Lean reads them, positions are the model's, and evidence is read strictly."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.lean.assemble import (
    Doubt,
    Statement,
    clamp_heartbeats,
    make_file,
    make_piece,
    own_text,
    read_messages,
    split_statement,
)
from core.lean.verdict import LeanCheck, LeanMessage, Verdict
from core.problems import Problem

DATA = Path(__file__).parents[2] / "shared" / "data"


def problem(statement: str, header: str = "") -> Problem:
    return Problem(split_statement(statement).name, statement, header, "", "test")


# --- splitting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("theorem t : True :=", Statement("", "t", "", "", "True")),
        ("lemma t (n : Nat) : n = n := by", Statement("", "t", "", "(n : Nat)", "n = n")),
        ("theorem t {a : A} [B a] : C := sorry", Statement("", "t", "", "{a : A} [B a]", "C")),
        ("theorem t.{u, v} (a : Sort u) : A :=", Statement("", "t", ".{u, v}", "(a : Sort u)", "A")),
        # `:` and `:=` inside brackets and of a `let` belong to those
        ("theorem t (h : p := by simp) : q :=", Statement("", "t", "", "(h : p := by simp)", "q")),
        ("theorem t : let x := 3; x = 3 := by", Statement("", "t", "", "", "let x := 3; x = 3")),
        ("theorem t : ∀ x : A, (y : B) → C :=", Statement("", "t", "", "", "∀ x : A, (y : B) → C")),
        # comments and strings hold neither
        ("theorem t /- : -/ (p : P) : q -- :=\n  r :=", Statement("", "t", "", "(p : P)", "q -- :=\n  r")),
        ('theorem t : s = ":=" :=', Statement("", "t", "", "", 's = ":="')),
        ("def d := 1\n\n@[simp] theorem t : d = 1 := by", Statement("def d := 1", "t", "", "", "d = 1")),
        ("theorem Nat.t : p := by\n  exact h", Statement("", "Nat.t", "", "", "p")),
        ("theorem t : ∀ n : Nat, p n\n  | 0 => a\n  | n => b", Statement("", "t", "", "", "∀ n : Nat, p n")),
        ("theorem t : |a + b| ≤ c\n  |d| := by", Statement("", "t", "", "", "|a + b| ≤ c\n  |d|")),
        ("theorem t : And p q where\n  left := a", Statement("", "t", "", "", "And p q")),
    ],
)
def test_split(source, expected):
    assert split_statement(source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no theorem"),
        ("-- theorem t : p :=", "no theorem"),
        ("theorem", "no name"),
        ("theorem : p :=", "no name"),
        ("theorem t (p : Prop) :=", "no `:`"),
        ("theorem t : p", "does not end in `:=`"),
        ("theorem t : :=", "empty conclusion"),
    ],
)
def test_split_says_what_is_missing(source, message):
    with pytest.raises(ValueError, match=message):
        split_statement(source)


binder = st.sampled_from(["(p : Prop)", "{q : A → B}", "[h : C (a := 1)]", "⦃x y : N⦄", "(s : t := :)"])
words = st.sampled_from(["And", "p", "(x : N)", "→", "⟨a, b⟩", "[1 : 2]", "∀", "x,"])


@given(st.lists(binder), st.lists(words, min_size=1), st.sampled_from([" := by", " :=", " := sorry"]))
def test_split_puts_back_together(binders, conclusion, ending):
    source = f"theorem name {' '.join(binders)} : {' '.join(conclusion)}{ending}"
    expected = Statement("", "name", "", " ".join(binders), " ".join(conclusion))
    assert split_statement(source) == expected


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not here")
def test_every_minif2f_statement_splits():
    rows = [json.loads(line) for line in (DATA / "minif2f.jsonl").read_text().splitlines()]
    for row in rows:
        statement = split_statement(row["formal_statement"])
        assert statement.name == row["name"]
        assert statement.conclusion
        assert ":=" not in statement.conclusion.replace("let", "")
    assert len(rows) == 488


# --- the model's text ---------------------------------------------------------------------------


def test_own_text_blanks_what_repeats_ours_and_keeps_positions():
    given_ = problem(
        "def d (n : Nat) := n\ntheorem t : d 1 = 1 :=", "import Mathlib\nimport Aesop\nopen Real"
    )
    code = "import Aesop\nimport Mathlib\n\ndef d (n : Nat)\n  := n -- kept\ntheorem t : d 1 = 1 := rfl"
    assert own_text(code, given_) == (
        "            \n              \n\n               \n       -- kept\ntheorem t : d 1 = 1 := rfl"
    )


def test_own_text_keeps_what_is_not_ours():
    given_ = problem("def d := 1\ntheorem t : d = 1 :=", "import Mathlib")
    for code in ("import Evil\ntheorem t", "def d := 2\ntheorem t : d = 1", "theorem t\nimport Mathlib"):
        assert own_text(code, given_) == code


# --- positions and evidence ---------------------------------------------------------------------

STATEMENT = "theorem t (p : Prop) (h : p) : p :="
CODE = "theorem t (p : Prop) (h : p) : p :=\n  h"


def example(code: str = CODE, *, alone: bool = True):
    given_ = problem(STATEMENT)
    pieces = [make_piece(LeanCheck(n, given_, code), code, n * 8, alone=alone) for n in "ab"]
    return make_file("prelude\nimport Prelude", pieces[: 1 if alone else 2], "c" * 8)


def at(line: int, column: int, text: str, severity: str = "error", end=None):
    return {"severity": severity, "pos": {"line": line, "column": column}, "endPos": end, "data": text}


def test_the_file_holds_the_parts_in_order():
    # lines 1, 2: the header; 3 to 6: the statement and our mark; 7, 8: the model's; then the check
    assert example().text.splitlines() == [
        "prelude",
        "import Prelude",
        "def stmt_aaaaaaaa : Prop :=",
        "  ∀ (p : Prop) (h : p),",
        "  p",
        "#check _root_.stmt_aaaaaaaa",
        "theorem t (p : Prop) (h : p) : p :=",
        "  h",
        "theorem check_aaaaaaaa : _root_.stmt_aaaaaaaa := @_root_.t",
        "#print axioms check_aaaaaaaa",
        "theorem sentinel_cccccccc : _root_.False := _root_.True.intro",
    ]


MARK = at(6, 0, "stmt_aaaaaaaa : Prop", "information")
AXIOMS = at(10, 0, "'check_aaaaaaaa' does not depend on any axioms", "information")
SENTINEL = at(11, 44, "Type mismatch")
PROOF = [MARK, AXIOMS, SENTINEL]


def verdict(messages):
    return read_messages(example(), messages)[0].verdict


def test_full_evidence_is_a_proof():
    assert verdict(PROOF) is Verdict.PROVED
    some = "'check_aaaaaaaa' depends on axioms: [propext,\n Classical.choice,\n Quot.sound]"
    assert verdict([MARK, at(10, 0, some, "info"), SENTINEL]) is Verdict.PROVED


@pytest.mark.parametrize("missing", PROOF, ids=["mark", "axioms", "sentinel"])
def test_any_missing_part_is_no_evidence(missing):
    assert verdict([m for m in PROOF if m is not missing]) is None


@pytest.mark.parametrize(
    "answer",
    [
        "'check_bbbbbbbb' does not depend on any axioms",
        "'evil.check_aaaaaaaa' does not depend on any axioms",
        "'check_aaaaaaaa' does not depend on any axioms of note",
        "'check_aaaaaaaa' depends on axioms: []",
        "'check_aaaaaaaa' depends on axioms: propext",
        "'check_aaaaaaaa' depends on axioms: [propext] 'check_aaaaaaaa' does not depend on any axioms",
    ],
)
def test_an_answer_that_is_not_exactly_one_is_no_evidence(answer):
    assert verdict([MARK, at(10, 0, answer, "info"), SENTINEL]) is None


def test_an_answer_at_another_line_is_no_evidence():
    assert verdict([MARK, at(8, 0, AXIOMS["data"], "info"), SENTINEL]) is None


@pytest.mark.parametrize("axiom", ["sorryAx", "magic", "Lean.ofReduceBool", "propextt", "Classical"])
def test_only_three_axioms_are_allowed(axiom):
    answer = at(10, 0, f"'check_aaaaaaaa' depends on axioms: [propext, {axiom}]", "info")
    (reading,) = read_messages(example(), [MARK, answer, SENTINEL])
    assert reading.verdict is Verdict.FAILED
    assert axiom in reading.messages[-1].text
    assert (reading.messages[-1].line, reading.messages[-1].column) == (1, 8)


def test_an_error_or_a_sorry_outweighs_the_axioms():
    assert verdict([*PROOF, at(8, 2, "Type mismatch")]) is Verdict.FAILED
    assert verdict([*PROOF, at(7, 8, "declaration uses `sorry`", "warning")]) is Verdict.FAILED
    assert verdict([*PROOF, at(7, 8, "unused variable", "warning")]) is Verdict.PROVED


def test_a_statement_that_does_not_elaborate_says_nothing_of_the_proof():
    (reading,) = read_messages(example(), [*PROOF, at(5, 2, "Unknown identifier `p`")])
    assert (reading.verdict, reading.doubt) == (None, Doubt.OURS)
    assert "own statement" in reading.reason


def test_a_header_that_does_not_elaborate_says_nothing_of_any_proof():
    readings = read_messages(example(alone=False), [at(2, 0, "unknown module prefix 'Mathlib'")])
    assert [(r.verdict, r.doubt) for r in readings] == [(None, Doubt.OURS)] * 2
    assert "unknown module" in readings[0].reason


def test_positions_are_the_models_own():
    messages = [
        at(8, 2, "Type mismatch", end={"line": 8, "column": 3}),  # line 8 of the file is line 2 of the code
        at(7, 0, "unclosed", end={"line": 9, "column": 7}),  # ends in our lines: cut at the code's end
        at(9, 0, "unexpected token 'theorem'"),  # the code's end left something open
        at(9, 52, "Unknown constant `t`"),  # about the name
    ]
    (reading,) = read_messages(example(), [*PROOF, *messages])
    assert reading.messages == (
        LeanMessage("error", 1, 0, 2, 3, "unclosed"),
        LeanMessage("error", 2, 2, 2, 3, "Type mismatch"),
        LeanMessage("error", 2, 3, None, None, "unexpected token 'theorem'"),
        LeanMessage("error", 1, 8, None, None, "Unknown constant `t`"),
    )


def test_pieces_of_a_file_are_read_apart():
    # each piece: namespace, 3 lines of statement, mark, 2 lines of code, check, axioms, end = 10 lines
    file = example(alone=False)
    assert (file.starts, file.sentinel_line) == ((3, 13), 23)
    marks = [at(line, 0, f"item_{n * 8}.stmt_{n * 8} : Prop", "info") for line, n in ((7, "a"), (17, "b"))]
    axioms = [
        at(line, 0, f"'item_{n * 8}.check_{n * 8}' does not depend on any axioms", "info")
        for line, n in ((11, "a"), (21, "b"))
    ]
    error = at(9, 2, "item_aaaaaaaa.t is _root_.item_aaaaaaaa.stmt_aaaaaaaa")
    readings = read_messages(file, [*marks, *axioms, error, at(23, 44, "Type mismatch")])
    assert [r.verdict for r in readings] == [Verdict.FAILED, Verdict.PROVED]
    assert readings[0].messages == (LeanMessage("error", 2, 2, None, None, "t is the problem's statement"),)


def test_heartbeats_are_clamped():
    header = "set_option maxHeartbeats 0\nset_option  maxHeartbeats 900 in\nset_option maxHeartbeats 50"
    assert clamp_heartbeats(header, 100) == (
        "set_option maxHeartbeats 100\nset_option  maxHeartbeats 100 in\nset_option maxHeartbeats 50"
    )
