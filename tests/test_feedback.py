"""Error-fix messages: every verdict, the code window, and what is left when there is little room."""

from __future__ import annotations

from typing import Any

import pytest
from format_cases import HEADER, STATEMENT
from hypothesis import given
from hypothesis import strategies as st

from core.format_checks import PRESETS, check_format
from core.lean.feedback import error_fix_message, format_fix_message, within_tokens
from core.lean.verdict import LeanMessage, LeanResult, Verdict
from core.problems import Problem

CODE = """theorem t (p q : Prop) (h : p ∧ q) : q ∧ p := by
  have h1 : p := h.left
  have h2 : q := h.left
  simp

  exact ⟨h2, h1⟩"""
MISMATCH = "type mismatch\n  h.left\nhas type\n  p : Prop\nbut is expected to have type\n  q : Prop"
ALL: dict[str, Any] = {"max_errors": 3, "context_lines": 2, "max_characters": None, "overlong": "drop"}


def error(line: int, column: int, text: str, severity: str = "error") -> LeanMessage:
    return LeanMessage(severity, line, column, None, None, text)


def result(*messages: LeanMessage, verdict: Verdict = Verdict.FAILED, rule: str | None = None, goals=()):
    return LeanResult("1", verdict, messages, rule, 0.1, goals)


def message(*args: LeanMessage, code: str = CODE, goals: tuple[str, ...] = (), **changes: Any) -> str | None:
    return error_fix_message(code, result(*args, goals=goals), **(ALL | changes))


def test_window_and_mark() -> None:
    assert (
        message(error(3, 17, MISMATCH))
        == f"""Fix the proof. Lean says:
line 3: {MISMATCH}
1 | theorem t (p q : Prop) (h : p ∧ q) : q ∧ p := by
2 |   have h1 : p := h.left
3 >   have h2 : q := h.left
4 |   simp
5 |"""
    )


def test_compact() -> None:
    """What the tiny experiment uses: one error, its line, Lean's words."""
    assert message(error(3, 17, "unknown identifier 'x'"), max_errors=1, context_lines=0) == (
        "Fix the proof. Lean says:\nline 3: unknown identifier 'x'\n3 >   have h2 : q := h.left"
    )


def test_first_errors_first_and_only_errors() -> None:
    text = message(
        error(6, 2, "third"),
        error(3, 9, "second"),
        error(1, 0, "a warning", "warning"),
        error(3, 2, "first"),
        error(3, 9, "second"),
        error(6, 9, "fourth"),
        context_lines=0,
    )
    assert text is not None
    lines = [line for line in text.split("\n") if line.startswith("line ")]
    assert lines == ["line 3: first", "line 3: second", "line 6: third"]


def test_goals_stand_before_their_error() -> None:
    text = message(error(6, 2, "late"), error(3, 2, "early"), goals=("⊢ late", "h : p\n⊢ q"), context_lines=0)
    assert text == (
        "Fix the proof. Lean says:\n"
        "line 3: goals before it:\nh : p\n⊢ q\nearly\n3 >   have h2 : q := h.left\n"
        "line 6: goals before it:\n⊢ late\nlate\n6 >   exact ⟨h2, h1⟩"
    )


def test_goals_that_belong_to_no_error_are_left_out() -> None:
    text = message(error(3, 2, "early"), goals=("⊢ a", "⊢ b"), context_lines=0)
    assert text is not None
    assert "⊢" not in text


@pytest.mark.parametrize(("line", "shown"), [(0, 1), (-3, 1), (1, 1), (6, 6), (7, 6), (999, 6)])
def test_lines_outside_the_code(line: int, shown: int) -> None:
    text = message(error(line, 0, "where?"), context_lines=0)
    assert text is not None
    assert text.split("\n")[2].startswith(f"{shown} > ")


def test_imports_are_counted_as_the_model_wrote_them() -> None:
    text = message(error(4, 2, "no"), code="import Mathlib\n\n" + CODE, context_lines=0)
    assert text is not None
    assert text.endswith("4 >   have h1 : p := h.left")


def test_advice_for_an_editor_is_left_out() -> None:
    advice = (
        "Additional diagnostic information may be available using the `set_option diagnostics true` command."
    )
    text = message(error(4, 2, f"failed\n{advice}"), context_lines=0)
    assert text == "Fix the proof. Lean says:\nline 4: failed\n4 >   simp"


@pytest.mark.parametrize(
    ("verdict", "rule", "expected"),
    [
        (Verdict.PROVED, None, None),
        (Verdict.UNKNOWN, "no answer", None),
        (Verdict.TIMEOUT, "wall clock", "ran out of time"),
        (Verdict.CRASHED, "end of file", "crashed"),
        (Verdict.REFUSED, "native_decide", "not allowed: native_decide."),
        (Verdict.FAILED, "no theorem t", "no proof of the theorem: no theorem t."),
        (Verdict.FAILED, None, "no proof of the theorem"),
    ],
)
def test_verdicts_without_errors(verdict: Verdict, rule: str | None, expected: str | None) -> None:
    text = error_fix_message(CODE, result(verdict=verdict, rule=rule), **ALL)
    assert (text is None) if expected is None else (text is not None and expected in text)


def test_drop_or_cut() -> None:
    errors = (error(3, 17, MISMATCH), error(6, 2, "unsolved goals"))
    whole = message(*errors)
    assert whole is not None
    assert message(*errors, max_characters=len(whole)) == whole
    assert message(*errors, max_characters=len(whole) - 1) is None
    one = message(errors[0])
    assert one is not None
    assert message(*errors, max_characters=len(whole) - 1, overlong="cut") == one
    assert message(*errors, max_characters=110, overlong="cut") == (
        "Fix the proof. Lean says:\nline 3: type mismatch\n  h.left\nhas type\n  p : Prop …\n"
        "3 >   have h2 : q := h.left"
    )


@given(
    st.lists(
        st.builds(error, st.integers(-1, 9), st.integers(0, 9), st.text("ab\n⊢ ", max_size=60)), max_size=4
    ),
    st.integers(1, 200),
    st.integers(0, 3),
    st.booleans(),
)
def test_cut_never_exceeds_the_limit(
    errors: list[LeanMessage], limit: int, context: int, with_goals: bool
) -> None:
    goals = tuple("⊢ p" for _ in errors) if with_goals else ()
    settings = ALL | {"context_lines": context}
    text = error_fix_message(
        CODE, result(*errors, goals=goals), **(settings | {"max_characters": limit, "overlong": "cut"})
    )
    whole = error_fix_message(CODE, result(*errors, goals=goals), **settings)
    assert text is not None
    assert whole is not None
    assert len(text) <= limit
    assert text == whole or len(whole) > limit


def test_unknown_overlong_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be 'drop' or 'cut'"):
        message(error(1, 0, "x"), overlong="trim")


def test_format_failures() -> None:
    problem = Problem("t", STATEMENT, HEADER, "", "test")
    settings: dict[str, Any] = {"max_characters": None, "overlong": "drop"}
    bad = check_format("<think>\nWe", problem, PRESETS["kimina"], truncated=False)
    assert format_fix_message(bad, max_findings=2, **settings) == (
        "Fix the format:\nline 1: <think> is never closed\nline 2: no ```lean4 block"
    )
    short = format_fix_message(bad, max_findings=9, max_characters=50, overlong="cut")
    assert short == "Fix the format:\nline 1: <think> is never closed"
    good = type(bad)((), "x", 1, (), "y")
    assert format_fix_message(good, max_findings=2, **settings) is None


def test_a_token_budget_cuts_where_characters_would() -> None:
    """A "token" here is a word with its space: the longest message of at most 9 words."""
    error = LeanMessage(
        "error", 2, 2, 2, 3, "type mismatch\n  h2\nhas type\n  q\nbut is expected to have type\n  p"
    )
    words = lambda text: len(text.split())  # noqa: E731
    seen: list[int | None] = []

    def make(limit: int | None) -> str | None:
        seen.append(limit)
        settings = ALL | {"max_errors": 1, "context_lines": 0, "max_characters": limit, "overlong": "cut"}
        return error_fix_message(CODE, result(error), **settings)

    whole = make(None)
    assert whole is not None
    keep = {"max_characters": None, "count_tokens": words}
    assert within_tokens(make, max_tokens=None, **keep) == whole
    assert within_tokens(make, max_tokens=words(whole), **keep) == whole
    for budget in range(3, words(whole)):
        cut = within_tokens(make, max_tokens=budget, **keep)
        assert cut is not None
        assert words(cut) <= budget
        longer = [m for limit in range(len(cut) + 2, len(whole)) if (m := make(limit)) and words(m) <= budget]
        assert all(len(message) <= len(cut) for message in longer), "no longer message keeps the budget"
    drop = lambda limit: error_fix_message(  # noqa: E731
        CODE, result(error), **(ALL | {"max_characters": limit, "overlong": "drop"})
    )
    assert within_tokens(drop, max_tokens=3, **keep) is None
