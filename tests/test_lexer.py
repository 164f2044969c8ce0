"""The lexer against Lean's own `tokenFn`, by hand, and for time."""

from __future__ import annotations

import json
import random
import time
from functools import cache

import pytest
from conftest import DATA
from hypothesis import given
from hypothesis import strategies as st
from lean_tokens import LIBRARY_SYMBOLS, lean_characters, lean_tokens

from core.format_checks.alignment import code_lines
from core.format_checks.lexer import (
    _LONG_SYMBOLS,
    KEYWORDS,
    TokenKind,
    code_words,
    comment_spans,
    iter_tokens,
    mask_quoted,
    significant_tokens,
    strip_comments,
    tokenize,
)
from core.format_checks.statement import find_statement, statement_kept

K = TokenKind
# What a hostile text is made of: every mark that opens, closes or joins something in Lean.
MARKS = """
    a h1 x' Nat.add «a b» « » . .. 1 1.5 1. 2e3 0x1F 0b1 1_000 .1 ( ) { } .{ ⟨ ⟩ -- /- -/ /-- /-! d
    /--/ /-/ - / \\ r" r#" "# r ' 'a' '\\n' '' ` `x `( ⁻¹ ⁻¹' < <- -> ← | |- |>. := : :: => ∑ ∑' λ α
    ₁ ℝ sorry axiom by fun #eval #evals # @[ @ ! ? _ $ ∃ ∃! × é 0 e x b Σ π ¬ '\\x41' " "s" "\\""
    """.split()  # noqa: SIM905
PIECES = [*MARKS, " ", "\n", "  ", "-- c\n", "/-- d -/", '"a\nb"', "\t", "\\\n", "{x}"]
SHAPES = [
    *'( a 1. «» « ⁻ {} < \\ 漢 = .1 ` " \\" /- -/ /-- s!"{ r#" 𝔸¬'.split(),  # noqa: SIM905
    *("a ", "\n", "a\n", '"" ', "/- -/ ", "-- x\n", 's!"{x}" ', "\u2028 ", "\ud800", "theorem ", "'"),
]


def hostile(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(count)]


def proofs() -> list[str]:
    file = DATA / "kimina_minif2f_proofs.jsonl"
    if not file.exists():
        pytest.skip(f"no {file.name} in ../shared/data")
    return [json.loads(line)["code"] for line in file.read_text().splitlines()]


def statements() -> list[dict[str, str]]:
    file = DATA / "minif2f.jsonl"
    if not file.exists():
        pytest.skip(f"no {file.name} in ../shared/data")
    return [json.loads(line) for line in file.read_text().splitlines()]


@cache
def proofs_as_lean_reads_them() -> list[dict]:
    return lean_tokens(proofs(), LIBRARY_SYMBOLS)


def spans(source: str) -> list[list]:
    return [[t.start, t.end, t.text] for t in significant_tokens(source)]


# --- against Lean ---------------------------------------------------------------------------------


def test_reads_the_112_proofs_as_lean_does() -> None:
    sources = proofs()
    assert len(sources) == 112
    for source, lean in zip(sources, proofs_as_lean_reads_them(), strict=True):
        assert lean["error"] is None, "Lean reads it to the end"
        assert spans(source) == [token[:3] for token in lean["tokens"]]
        assert "".join(token.text for token in tokenize(source)) == source


def test_removes_comments_and_normalises_lines_as_lean_does() -> None:
    """With comments removed Lean reads the same tokens at the same places, line by line."""
    sources = proofs()
    stripped = [strip_comments(source) for source in sources]
    before = proofs_as_lean_reads_them()
    after = lean_tokens(stripped, LIBRARY_SYMBOLS)
    assert sum(text != source for text, source in zip(stripped, sources, strict=True)) >= 10
    for source, text, a, b in zip(sources, stripped, before, after, strict=True):
        assert a == b
        assert not comment_spans(text)
        lines: dict[int, list[str]] = {}
        for start, _, word, _ in a["tokens"]:
            lines.setdefault(source.count("\n", 0, start), []).append(word)
        normalised = ["".join(line.split()) for line in code_lines(text)]
        assert normalised == ["".join("".join(words).split()) for words in lines.values()]


def test_reads_the_488_statements_as_lean_does() -> None:
    sources = [row["informal_prefix"] + row["formal_statement"] for row in statements()]
    for source, lean in zip(sources, lean_tokens(sources, LIBRARY_SYMBOLS), strict=True):
        assert lean["error"] is None
        assert spans(source) == [token[:3] for token in lean["tokens"]]


def test_statements_stand_in_their_proofs() -> None:
    """As Lean's tokens say: the statement's are a stretch of the proof's, for all but those that differ."""
    by_name = {row["name"]: row["formal_statement"] for row in statements()}
    file = DATA / "kimina_minif2f_proofs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    both = zip(rows, proofs_as_lean_reads_them(), strict=True)
    rows, lean_code = zip(*((row, read) for row, read in both if row["name"] in by_name), strict=True)
    lean_statement = lean_tokens([by_name[row["name"]] for row in rows], LIBRARY_SYMBOLS)
    kept = 0
    for row, code, statement in zip(rows, lean_code, lean_statement, strict=True):
        wanted = [token[2] for token in statement["tokens"]]
        wanted = wanted[: len(wanted) - 1 - wanted[::-1].index(":=") + 1]
        words = [token[2] for token in code["tokens"]]
        stands = any(words[i : i + len(wanted)] == wanted for i in range(len(words)))
        assert statement_kept(by_name[row["name"]], row["code"]) == stands, row["name"]
        kept += stands
    assert kept > len(rows) / 4, f"{kept} of {len(rows)} statements stand in their proofs unchanged"


def test_reads_hostile_text_as_lean_does() -> None:
    """On 12,000 texts of marks: where Lean reads on, the same tokens; where it gives up, the same so far."""
    sources = hostile(12_000, seed=0)
    own = set(_LONG_SYMBOLS) | set(LIBRARY_SYMBOLS) | {"\\", "?", "."}
    whole = 0
    for source, lean in zip(sources, lean_tokens(sources, sorted(own)), strict=True):
        expected = [token[:3] for token in lean["tokens"]]
        found = spans(source)
        whole += lean["error"] is None
        assert (found if lean["error"] is None else found[: len(expected)]) == expected, source
    assert whole > 3_000


def test_interpolated_strings_end_where_lean_ends_them() -> None:
    sources = [
        's!"a" b', 's!"{x}" b', 's!"{f "}" } } c" b', 's!"a {{x := 1}.x} {y}" b', r's!"\{ \" {x}" b',
        's!"{s!"{x} {"}"}"}" b', 'm!"a {x /- } " -/ y} c" b', 's! "x {y}" b', 's!"{x -- } "\n}" b',
        's!"{\'}\'}" b', 's!"{⟨1, 2⟩.1}{.{}}" b', 's!"}" b',
    ]  # fmt: skip
    for source, lean in zip(sources, lean_tokens(sources, LIBRARY_SYMBOLS), strict=True):
        assert lean["error"] is None, source
        ends = [end for _, end, _, kind in lean["tokens"] if kind == "interpolated"]
        tokens = tokenize(source)
        assert tokens[-1].text == "b"
        assert tokens[-1].start == lean["tokens"][-1][0]
        assert [tokens[-3].end] == ends, source


def test_kinds_are_those_of_lean() -> None:
    marks = hostile(3_000, seed=1)
    sources = [*proofs(), *marks]
    read = [*proofs_as_lean_reads_them(), *lean_tokens(marks, LIBRARY_SYMBOLS)]
    literals = {K.NUMBER, K.STRING, K.CHAR}
    for source, lean in zip(sources, read, strict=True):
        for token, (_, _, text, kind) in zip(significant_tokens(source), lean["tokens"], strict=False):
            if token.text != text:
                break  # Lean knows less notation in this test
            if kind == "literal":
                assert token.kind in literals or text[0] == "`", text
            elif kind == "ident":
                assert token.kind is K.IDENTIFIER or text in KEYWORDS, text
            else:
                assert token.kind in {K.SYMBOL, K.KEYWORD} or text in LIBRARY_SYMBOLS, text


def test_names_take_the_characters_that_lean_takes() -> None:
    lean = lean_characters()
    for name, prefix in (("first", ""), ("rest", "a")):
        taken = set(lean[name])
        for code in [*range(0x3000), *range(0x1D000, 0x1E000), 0x10FFFF]:
            if chr(code) in ".`":  # joins names, quotes a name
                continue
            tokens = tokenize(prefix + chr(code) + "a")
            mine = len(tokens) == 1 and tokens[0].kind is K.IDENTIFIER
            assert mine == (code in taken), hex(code)


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/- a /- b -/ c -/ d", [(K.BLOCK_COMMENT, "/- a /- b -/ c -/"), (K.IDENTIFIER, "d")]),
        ("-- /- x\ny", [(K.LINE_COMMENT, "-- /- x"), (K.IDENTIFIER, "y")]),
        ('"-- no /- no" x', [(K.STRING, '"-- no /- no"'), (K.IDENTIFIER, "x")]),
        ("/-- a -/ def", [(K.DOC_COMMENT, "/-- a -/"), (K.KEYWORD, "def")]),
        ("/-- -- -/\n-/ x", [(K.DOC_COMMENT, "/-- -- -/\n-/"), (K.IDENTIFIER, "x")]),
        ("/-/ a -/ x", [(K.BLOCK_COMMENT, "/-/ a -/"), (K.IDENTIFIER, "x")]),
        ("/- a", [(K.ERROR, "/- a")]),
        ('x "a', [(K.IDENTIFIER, "x"), (K.ERROR, '"a')]),
        ("x «a", [(K.IDENTIFIER, "x"), (K.ERROR, "«a")]),
        (r'"a\"b" c', [(K.STRING, r'"a\"b"'), (K.IDENTIFIER, "c")]),
        ('r"a\\" b', [(K.STRING, 'r"a\\"'), (K.IDENTIFIER, "b")]),
        ('r#"a"b"# c', [(K.STRING, 'r#"a"b"#'), (K.IDENTIFIER, "c")]),
        ('"a\nb" c', [(K.STRING, '"a\nb"'), (K.IDENTIFIER, "c")]),
        ("'a' x' ''", [(K.CHAR, "'a'"), (K.IDENTIFIER, "x'"), (K.SYMBOL, "''")]),
        ("«a.b».c₁'", [(K.IDENTIFIER, "«a.b».c₁'")]),
        ("h.1.2", [(K.IDENTIFIER, "h"), (K.SYMBOL, "."), (K.NUMBER, "1"), (K.SYMBOL, "."), (K.NUMBER, "2")]),
        ("x<--y", [(K.IDENTIFIER, "x"), (K.SYMBOL, "<-"), (K.SYMBOL, "-"), (K.IDENTIFIER, "y")]),
        ("x--y", [(K.IDENTIFIER, "x"), (K.LINE_COMMENT, "--y")]),
        ("#eval sorry", [(K.KEYWORD, "#eval"), (K.KEYWORD, "sorry")]),
        ("exact? theorem.x", [(K.IDENTIFIER, "exact?"), (K.IDENTIFIER, "theorem.x")]),
        ("\u2028\ufeff", [(K.ERROR, "\u2028\ufeff")]),
    ],
)  # fmt: skip
def test_tokens(source: str, expected: list[tuple[TokenKind, str]]) -> None:
    found = [(t.kind, t.text) for t in tokenize(source) if t.kind is not K.WHITESPACE]
    assert found == expected


def test_positions_count_code_points_and_line_ends() -> None:
    tokens = tokenize("𝔸 ∧\r\n  β /- x\n\n -/ γ")
    places = [(t.text, t.line, t.column) for t in tokens if t.kind is not K.WHITESPACE]
    assert places == [("𝔸", 1, 0), ("∧", 1, 2), ("β", 2, 2), ("/- x\n\n -/", 2, 4), ("γ", 4, 4)]


def test_strip_and_mask_keep_every_place() -> None:
    source = "a \"s -- t\" -- c\n/- d\n-/ «e f» 'g' h"
    assert strip_comments(source) == "a \"s -- t\"     \n    \n   «e f» 'g' h"
    assert mask_quoted(source) == "a              \n    \n             h"
    assert list(code_words(mask_quoted("x «axiom» 1axiom y.axiom"))) == [
        ("x", 0),
        ("axiom", 11),
        ("y.axiom", 17),
    ]


# --- properties -----------------------------------------------------------------------------------

lean_text = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)


@given(lean_text)
def test_no_text_loses_a_character(source: str) -> None:
    tokens = tokenize(source)
    assert "".join(token.text for token in tokens) == source
    line = column = 0
    for token in tokens:
        assert source[token.start : token.end] == token.text != ""
        assert (token.line, token.column) == (line + 1, column)
        line += token.text.count("\n")
        column = len(token.text.rpartition("\n")[2]) + (0 if "\n" in token.text else column)


@given(lean_text)
def test_stripped_text_has_the_same_words_at_the_same_places(source: str) -> None:
    stripped = strip_comments(source)
    assert [len(line) for line in stripped.split("\n")] == [len(line) for line in source.split("\n")]
    words = list(significant_tokens(source))
    if words and words[-1].text.startswith("/-"):  # an unclosed comment is an error, and blank
        words.pop()
    assert list(significant_tokens(stripped)) == words


@given(lean_text, lean_text)
def test_lexing_may_start_at_any_token(before: str, after: str) -> None:
    tokens = tokenize(before + " \n" + after)
    start = next((t.start for t in tokens if t.start > len(before)), None)
    if start is not None and not any("!" in t.text or "dbg" in t.text for t in tokens):
        rest = [(t.kind, t.start, t.end) for t in iter_tokens(before + " \n" + after, start)]
        assert rest == [(t.kind, t.start, t.end) for t in tokens if t.start >= start]


@given(
    st.lists(st.sampled_from(["p", "∧", "(", ")", "->", "x₁", ":=", "1.5"]), min_size=1, max_size=8),
    st.data(),
)
def test_statement_is_found_however_it_is_spaced(words: list[str], data: st.DataObject) -> None:
    gap = st.sampled_from([" ", "\n ", " /- theorem t -/ ", "  ", " -- x\n"])
    code = "".join(word + data.draw(gap) for word in ["theorem", "t", *words, ":=", "by", "simp"])
    statement = " ".join(["theorem", "t", *words, ":= by sorry"])
    match = find_statement(statement, "lemma a := b\n" + code)
    assert match is not None
    assert match.kept
    changed = code.replace(words[-1], "q'")
    assert not statement_kept(statement, changed)


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear(shape: str) -> None:
    def seconds(length: int) -> float:
        source = (shape * length)[:length]
        times = []
        for _ in range(2):
            start = time.process_time()
            for _ in iter_tokens(source):
                pass
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(100_000) < 3.5 * seconds(50_000) + 0.02
