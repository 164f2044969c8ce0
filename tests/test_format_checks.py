"""Format checks: the table of outputs, each measure against a slow reference, properties, time."""

from __future__ import annotations

import gc
import itertools
import time
from collections import Counter
from dataclasses import asdict, replace

import pytest
from format_cases import CASES, HEADER, LEAN, STATEMENT, THINK, Case, output
from format_fuzz import fuzz
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import core.format_checks.lexer as lexer
from core.format_checks import (
    KINDS,
    PRESETS,
    FormatThresholds,
    check_format,
    format_counters,
    overlong_penalty,
    statement_kept,
)
from core.format_checks.alignment import alignment, code_lines
from core.format_checks.checks import comment_density
from core.format_checks.lexer import strip_comments
from core.format_checks.repetition import repeated_lines, repeated_ngram_share, tail_loop
from core.format_checks.report import Finding
from core.problems import Problem

PROBLEM = Problem("t", STATEMENT, HEADER, "", "test")
KIMINA, STRICT = PRESETS["kimina"], PRESETS["strict"]


# --- the table ------------------------------------------------------------------------------------


def as_expected(finding: Finding, expected: str) -> bool:
    """`kind`, then optionally `@line:column`, then optionally `=value`."""
    expected, _, value = expected.partition("=")
    kind, _, place = expected.partition("@")
    return (
        kind == finding.kind
        and (not place or place == f"{finding.line}:{finding.column}")
        and (not value or finding.value == pytest.approx(float(value)))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_table(case: Case) -> None:
    thresholds = replace(KIMINA, **case.thresholds)
    report = check_format(case.text, PROBLEM, thresholds, truncated=case.truncated)
    expected = case.expected.split()
    assert len(report.findings) == len(expected), (report.findings, expected)
    for finding, words in zip(report.findings, expected, strict=True):
        assert as_expected(finding, words), (finding, words)
    assert report.passed == (not expected)


def test_table_has_every_kind() -> None:
    assert len(CASES) >= 120
    assert len({case.name for case in CASES}) == len(CASES)
    words = " ".join(case.expected for case in CASES).split()
    assert {word.partition("@")[0].partition("=")[0] for word in words} == set(KINDS)


def test_report_has_the_pieces() -> None:
    report = check_format(output(), PROBLEM, KIMINA, truncated=False)
    assert report.lean_code == LEAN
    assert report.lean_line == 14
    assert report.tactics_blocks == ("have h1 : p := h.left\nhave h2 : q := h.right", "exact ⟨h2, h1⟩")
    assert report.thinking == "\n" + THINK


# --- thresholds -----------------------------------------------------------------------------------


def test_published_thresholds() -> None:
    assert (KIMINA.significant_line_words, KIMINA.repeated_line_at) == (10, 6)
    assert (KIMINA.min_tactics_blocks, KIMINA.tactics_lines_floor, KIMINA.tactics_lines_share) == (2, 5, 0.95)
    assert (KIMINA.alignment, KIMINA.min_alignment) == ("iof", 0.7)
    assert KIMINA.reject_truncated


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_structured_config(name: str) -> None:
    schema = OmegaConf.structured(FormatThresholds)
    merged = OmegaConf.merge(schema, OmegaConf.create(asdict(PRESETS[name])))
    assert OmegaConf.to_object(merged) == PRESETS[name]


def test_strict_rejects_all_that_kimina_rejects() -> None:
    for case in CASES:
        kimina, strict = (
            {f.kind for f in check_format(case.text, PROBLEM, t, truncated=case.truncated).findings}
            for t in (KIMINA, STRICT)
        )
        assert kimina <= strict


def test_unknown_alignment_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be 'iof', 'iou' or 'subcode'"):
        replace(KIMINA, alignment="cosine")


def test_a_statement_that_declares_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="declares nothing"):
        check_format(output(), replace(PROBLEM, statement=":= by"), KIMINA, truncated=False)


# --- measures against slow references -------------------------------------------------------------

few_lines = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6)


@given(st.lists(few_lines, max_size=3), few_lines, st.booleans())
def test_alignment(blocks: list[list[str]], final: list[str], duplicates: bool) -> None:
    def score(name: str) -> float:
        return alignment(blocks, final, name, counts_duplicates=duplicates, subcode_lines=0.6)

    tactics = [line for block in blocks for line in block]
    names = sorted(set(tactics) | set(final))
    count = (lambda lines, x: lines.count(x)) if duplicates else (lambda lines, x: int(x in lines))
    both = sum(min(count(tactics, x), count(final, x)) for x in names)
    either = sum(max(count(tactics, x), count(final, x)) for x in names)
    whole = sum(count(final, x) for x in names)
    assert score("iof") == (both / whole if whole else 0)
    assert score("iou") == (both / either if either else 0)
    inside = [sum(x in final for x in block) > 0.6 * len(block) for block in blocks]
    assert score("subcode") == (sum(inside) / len(inside) if inside else 0)


@given(st.lists(st.sampled_from(["x y z w\n", "  x y z w\n", "the x y z\n", "x\n", "\n"]), max_size=30))
def test_repeated_lines(lines: list[str]) -> None:
    text = "".join(lines)
    found = repeated_lines(text, significant_words=4, times=3)
    count = sum(line.strip() == "x y z w" for line in lines)
    assert [times for _, times in found] == ([count] if count >= 3 else [])
    for offset, _ in found:
        assert text[offset:].startswith("x y z w")
        assert text[:offset].count("x y z w") == 2


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 4))
def test_repeated_ngrams(words: list[str], n: int) -> None:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repeated_ngram_share(" ".join(words), n) == pytest.approx(again / len(grams) if grams else 0)


@given(st.lists(st.sampled_from("ab("), max_size=24))
def test_tail_loop(words: list[str]) -> None:
    def copies(size: int) -> int:
        number = 0
        while words[-size * (number + 1) :][:size] == words[-size:] and size * (number + 1) <= len(words):
            number += 1
        return number

    most = max((copies(size) for size in range(1, len(words) + 1)), default=0)
    size, number = tail_loop(" ".join(words))
    assert number == most
    assert number == (copies(size) if words else 0)


def test_comment_density_by_hand() -> None:
    code = "a -- bc\n-- d\n\n/- e\n  f -/\n/- g -/ h"
    # code lines: 1 and 6; comment lines: 2, 4, 5. Code characters: a h; comments: --bc --d /-e f-/ /-g-/
    assert comment_density(code, strip_comments(code)) == (3 / 2, 18 / 2)
    assert comment_density("", "") == (0, 0)
    assert comment_density("-- ab", "     ") == (1, 4)


def test_code_lines_by_hand() -> None:
    code = "  have  h :=\tx -- c\n\n/- a\nb -/ y\n  "
    assert code_lines(strip_comments(code)) == ["have h := x", "y"]


def test_overlong_penalty_by_hand() -> None:
    # limit 100, buffer 20: 0 to 80; 90 is half way; -1 from 100 on.
    assert [overlong_penalty(n, 100, 20) for n in (0, 80, 90, 100, 500)] == [0, 0, -0.5, -1, -1]


def test_counters() -> None:
    good, bad = (check_format(t, PROBLEM, KIMINA, truncated=False) for t in (output(), "no"))
    counters = format_counters([(good, 0), (bad, 0), (bad, 0), (good, 1)])
    assert len(counters) == 2 * (len(KINDS) + 1)
    assert {name: n for name, n in counters.items() if n} == {
        "format/think_missing/turn_0": 2,
        "format/lean_block_missing/turn_0": 2,
        "format/tactics_blocks_too_few/turn_0": 2,
        "format/rejected/turn_0": 2,
    }
    assert counters["format/rejected/turn_1"] == 0


# --- properties -----------------------------------------------------------------------------------


def test_twenty_thousand_mutated_outputs_raise_nothing() -> None:
    kinds = fuzz(20_000, seed=1)
    assert kinds["passed"] > 100, "the fuzzer still makes some good outputs"
    assert len(kinds) > 30, "and nearly every fault"


@given(st.text(max_size=200), st.booleans(), st.sampled_from(sorted(PRESETS)))
def test_no_text_raises(text: str, truncated: bool, preset: str) -> None:
    report = check_format(text, PROBLEM, PRESETS[preset], truncated=truncated)
    assert not report.passed


@given(st.text(max_size=80).filter(lambda text: "think>" not in text and "`" not in text and "~" not in text))
def test_words_in_the_thinking_change_nothing(text: str) -> None:
    report = check_format(output(text + "\n" + THINK), PROBLEM, KIMINA, truncated=False)
    assert report.passed
    assert report.lean_code == LEAN


@given(st.data())
def test_windows_line_ends_change_no_place(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    if "\r" not in case.text:
        unix, windows = (
            check_format(text, PROBLEM, STRICT, truncated=False)
            for text in (case.text, case.text.replace("\n", "\r\n"))
        )
        assert unix == windows


@given(
    st.lists(st.sampled_from(["h", " ", "q", "∧", "p", "(", ")", ":="]), min_size=1, max_size=3), st.data()
)
def test_any_change_of_the_statement_is_found(words: list[str], data: st.DataObject) -> None:
    """A word put in or taken out of the statement makes it another, unless it is white space."""
    parts = LEAN.split(" := by")[0].split(" ")
    at = data.draw(st.integers(1, len(parts) - 1))
    changed = " ".join([*parts[:at], *words, *parts[at:]]) + " := by"
    same = "".join(changed.split()) == "".join(LEAN.split("\n")[0].split())
    assert statement_kept(STATEMENT, changed) == same


# --- time -----------------------------------------------------------------------------------------

SHAPES = [
    *'( 1. «» « ⁻ {} < \\ 漢 = ` " /- -/ /-- s!"{ r#" 𝔸¬ <think> </think> \0'.split(),  # noqa: SIM905
    *("a ", "\n", "a\n", "'", "/- -/ ", "-- x\n", "\u2028", "\ud800", "\r\n", "the \n", "``` ", "~~~~\n"),
    *("theorem ", "theorem t ", STATEMENT + "\n", "axiom ", "local instance "),
    *("```\n", "```tactics\n", "```lean4\n", "   ```a\n```\n"),
    "have h1 : x + y + z + w + v + u = a + b + c + d := by simp\n",
]
AROUND = {
    "whole": ("", ""),
    "thinking": ("<think>", output(before="")),
    "tactics": ("<think>\n```tactics\n", "\n```\n</think>\n```lean4\n" + LEAN + "\n```"),
    "lean": (output(closing="\n"), "\n```"),
}


def seconds(shape: str, around: tuple[str, str], length: int) -> float:
    text = around[0] + (shape * length)[:length] + around[1]
    times = []
    gc.disable()  # a collection of what other tests left would be counted
    try:
        for _ in range(2):
            lexer._quoted_spans.cache_clear()
            start = time.process_time()
            check_format(text, PROBLEM, STRICT, truncated=True)
            times.append(time.process_time() - start)
    finally:
        gc.enable()
    return min(times)


@pytest.mark.parametrize(("shape", "place"), list(itertools.product(SHAPES, AROUND)))
def test_time_is_linear(shape: str, place: str) -> None:
    """Twice the length costs about twice the time: quadratic would be four times."""
    assert seconds(shape, AROUND[place], 50_000) < 3.2 * seconds(shape, AROUND[place], 25_000) + 0.01


def test_large_outputs_take_no_time() -> None:
    """200,000 characters in less than 0.2 s on a quiet core, whatever they are; here with room for noise."""
    slow = Counter(
        {s: seconds(s, AROUND["lean"], 200_000) for s in ('"', "«»", "{}", "-- x\n", "1.", "```\n")}
    )
    assert slow.most_common(1)[0][1] < 0.8
