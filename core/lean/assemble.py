"""Puts our text around the model's and reads from Lean's messages whether there is evidence of a proof.

A piece of a Lean file, for one check (NONCE is 128 random bits that the model cannot know):

    def stmt_NONCE : Prop := ∀ …          the problem's statement, before anything of the model's
    #check stmt_NONCE                     our mark: the scope is ours and the statement elaborates
    …                                     the model's text with its helper lemmas
    theorem check_NONCE : _root_.stmt_NONCE := @_root_.NAME
    #print axioms check_NONCE

A file is a header, any number of pieces (each in a namespace of its own when there are several) and a
false theorem whose error must arrive: a Lean that reports no errors proves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any

from core.format_checks.lexer import Token, TokenKind, significant_tokens
from core.lean.verdict import LeanCheck, LeanMessage, Verdict
from core.problems import Problem

ALLOWED_AXIOMS = frozenset({"propext", "Classical.choice", "Quot.sound"})
_IS_A_PROP = re.compile(r"(\.\{.*\})? : Prop")  # what Lean says behind our random name
_DEPENDS = re.compile(r" depends on axioms: \[(\S+(?:, \S+)*)\]")
MAX_HEARTBEATS = 400_000  # about 10 s of elaboration; the wall clock ends what this does not

_OPENING, _CLOSING = frozenset("([{⟨⦃⟦"), frozenset(")]}⟩⦄⟧")
_OWN_ASSIGNMENT = frozenset({"let", "have", "letI", "haveI", "let!", "let_fun"})


# --- the statement ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """A theorem's statement in its parts; `∀ binders, conclusion` is the proposition.

    >>> split_statement("theorem t (p : Prop) (h : p) : p := by")
    Statement(preamble='', name='t', universes='', binders='(p : Prop) (h : p)', conclusion='p')
    """

    preamble: str
    """Definitions that the problem brings along, before the theorem."""
    name: str
    universes: str
    """`.{u, v}` as written, or empty."""
    binders: str
    conclusion: str


@lru_cache(maxsize=16384)
def split_statement(source: str) -> Statement:
    """Split the last theorem of `source`, which may end in `:=`, in `:= by …` or in a whole proof.

    Raises ValueError that says what is missing.
    """
    tokens = list(significant_tokens(source))
    theorems = [
        i
        for i, token in enumerate(tokens)
        if token.text in ("theorem", "lemma") and token.kind in (TokenKind.KEYWORD, TokenKind.IDENTIFIER)
    ]
    if not theorems:
        raise ValueError(f"the statement declares no theorem: {_excerpt(source)}")
    at = theorems[-1]
    if at + 1 >= len(tokens) or tokens[at + 1].kind is not TokenKind.IDENTIFIER:
        raise ValueError(f"the theorem has no name: {_excerpt(source)}")
    name = tokens[at + 1].text
    after = at + 2
    universes = ""
    if after < len(tokens) and tokens[after].text in (".{", "."):
        closing = next((i for i in range(after, len(tokens)) if tokens[i].text == "}"), None)
        if closing is None:
            raise ValueError(f"the universe list of {name} is not closed: {_excerpt(source)}")
        universes = source[tokens[after].start : tokens[closing].end]
        after = closing + 1
    colon = _first_at_depth_0(tokens, after, ":")
    if colon is None:
        raise ValueError(f"the statement of {name} has no `:` before its conclusion: {_excerpt(source)}")
    end = _end_of_conclusion(tokens, colon + 1)
    if end is None:
        raise ValueError(f"the statement of {name} does not end in `:=`: {_excerpt(source)}")
    if end == colon + 1:
        raise ValueError(f"the statement of {name} has an empty conclusion: {_excerpt(source)}")
    return Statement(
        preamble=source[: _declaration_start(tokens, at)].strip(),
        name=name,
        universes=universes,
        binders=source[tokens[after].start : tokens[colon - 1].end] if colon > after else "",
        conclusion=source[tokens[colon + 1].start : tokens[end - 1].end],
    )


def _excerpt(source: str) -> str:
    return repr(source if len(source) <= 160 else source[:157] + "...")


def _first_at_depth_0(tokens: Sequence[Token], start: int, text: str) -> int | None:
    depth = 0
    for i in range(start, len(tokens)):
        token = tokens[i]
        if depth == 0 and token.text == text:
            return i
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
    return None


def _end_of_conclusion(tokens: Sequence[Token], start: int) -> int | None:
    """Index of what ends the conclusion: the theorem's own `:=`, `where`, or the `|` of its first
    alternative (a `|` that leads a line, with a `=>` before the next free `:=`)."""
    depth, promised, alternative = 0, 0, None
    for i in range(start, len(tokens)):
        token = tokens[i]
        if depth == 0:
            if token.text in _OWN_ASSIGNMENT:
                promised += 1
            elif token.text == ":=" and promised:
                promised -= 1
            elif token.text in (":=", "where"):
                return i
            elif token.text == "|" and i > start and token.line > tokens[i - 1].line:
                alternative = i if alternative is None else alternative
            elif token.text == "=>" and alternative is not None:
                return alternative
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
    return None


def _declaration_start(tokens: Sequence[Token], at: int) -> int:
    """Where the declaration at `at` begins, its attributes and modifiers included."""
    start = at
    while start > 0:
        before = tokens[start - 1].text
        if before in ("private", "protected", "noncomputable", "nonrec"):
            start -= 1
        elif before == "]":
            opening = start - 1
            while opening > 0 and tokens[opening].text != "@[":
                opening -= 1
            if tokens[opening].text != "@[":
                break
            start = opening
        else:
            break
    return tokens[start].start


# --- the model's text ---------------------------------------------------------------------------


def own_text(code: str, problem: Problem) -> str:
    """The model's text with what repeats ours blanked out, so that every position stays: imports that the
    problem's header has too, and the definitions that its statement brings along."""
    preamble = [t.text for t in significant_tokens(split_statement(problem.statement).preamble)]
    if not preamble and "import" not in code:
        return code
    spans = []
    tokens = list(significant_tokens(code))
    imports = set(_imports(list(significant_tokens(problem.header))))
    at = 0
    while at + 1 < len(tokens) and tokens[at].text == "import" and tokens[at + 1].text in imports:
        spans.append((tokens[at].start, tokens[at + 1].end))
        at += 2
    if preamble:
        texts = [t.text for t in tokens]
        for i in range(len(texts) - len(preamble) + 1):
            if texts[i : i + len(preamble)] == preamble:
                spans.append((tokens[i].start, tokens[i + len(preamble) - 1].end))
                break
    for start, end in spans:
        code = code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]
    return code


def _imports(tokens: Sequence[Token]) -> list[str]:
    return [name.text for word, name in pairwise(tokens) if word.text == "import"]


# --- the file -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """One check as Lean source. Lines are counted from 1 within `text`, which ends in a line end."""

    text: str
    nonce: str
    namespace: str
    """`item_NONCE.`, or empty for a piece that stands alone in its file."""
    code: str
    mark_line: int
    code_line: int
    check_line: int
    last_line: int
    name: str


def make_piece(check: LeanCheck, code: str, nonce: str, *, alone: bool) -> Piece:
    """Assemble one check; `code` is `own_text(check.code, check.problem)`."""
    statement = split_statement(check.problem.statement)
    scope = "" if alone else f"item_{nonce}"
    root = f"_root_.{scope}." if scope else "_root_."
    binders = f"∀ {statement.binders},\n  " if statement.binders else ""
    before = [
        *([f"namespace {scope}"] if scope else []),
        *([statement.preamble] if statement.preamble else []),
        f"def stmt_{nonce}{statement.universes} : Prop :=\n  {binders}{statement.conclusion}",
        f"#check {root}stmt_{nonce}",
    ]
    text_before = "\n".join(before) + "\n"
    mark_line = text_before.count("\n")
    body = code if code.endswith("\n") else code + "\n"
    check_line = mark_line + 1 + body.count("\n")
    after = [
        f"theorem check_{nonce} : {root}stmt_{nonce} := @{root}{statement.name}",
        f"#print axioms check_{nonce}",
        *([f"end {scope}"] if scope else []),
    ]
    return Piece(
        text=text_before + body + "\n".join(after) + "\n",
        nonce=nonce,
        namespace=f"{scope}." if scope else "",
        code=code,
        mark_line=mark_line,
        code_line=mark_line + 1,
        check_line=check_line,
        last_line=check_line + len(after) - 1,
        name=statement.name,
    )


@dataclass(frozen=True)
class LeanFile:
    """A file of pieces. `starts[i]` is the line (from 1) of the first line of `pieces[i]`."""

    text: str
    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]
    sentinel_line: int


def make_file(header: str, pieces: Sequence[Piece], nonce: str) -> LeanFile:
    """Header, pieces and the false theorem at the end."""
    text = header if header.endswith("\n") else header + "\n"
    line = text.count("\n") + 1
    parts, starts = [text], []
    for piece in pieces:
        starts.append(line)
        parts.append(piece.text)
        line += piece.last_line
    parts.append(f"theorem sentinel_{nonce} : _root_.False := _root_.True.intro\n")
    return LeanFile("".join(parts), tuple(pieces), tuple(starts), line)


def clamp_heartbeats(header: str, limit: int) -> str:
    """`header` with every `set_option maxHeartbeats` above `limit`, and 0 (none), set to `limit`."""

    def clamped(match: re.Match[str]) -> str:
        beats = int(match[2])
        return match[1] + str(beats if 0 < beats <= limit else limit)

    return re.sub(r"(\bset_option\s+maxHeartbeats\s+)(\d+)", clamped, header)


# --- the evidence -------------------------------------------------------------------------------


class Doubt(Enum):
    """Why Lean's messages say nothing about a proof that can be trusted."""

    OURS = "the header or the problem's statement does not elaborate"
    CUT = "Lean did not reach the end of the file"
    SILENT = "Lean did not answer our commands around the proof"


@dataclass(frozen=True)
class Reading:
    """What Lean's messages say about one piece: PROVED, FAILED, or a doubt and its particulars."""

    verdict: Verdict | None
    messages: tuple[LeanMessage, ...]
    doubt: Doubt | None = None
    reason: str = ""
    raw: str = ""
    """Lean's own messages on a proof that it accepted, as JSON."""


def read_messages(file: LeanFile, raw: Sequence[dict[str, Any]]) -> list[Reading]:
    """A reading for each piece of `file` from the messages of `lean --json` or of a REPL.

    Nothing is believed unless the sentinel's error has come, and nothing about a piece unless our mark
    before the model's text has been answered.
    """
    located = [(m["pos"]["line"], m) for m in raw if m.get("pos")]
    located.sort(key=lambda pair: (pair[0], pair[1]["pos"]["column"]))
    sentinel = any(line == file.sentinel_line and m["severity"] == "error" for line, m in located)
    header = [m for line, m in located if line < file.starts[0] and m["severity"] == "error"]
    if header:
        reason = f"the header does not elaborate: {header[0]['data']}"
        return [Reading(None, (), Doubt.OURS, reason)] * len(file.pieces)
    if not sentinel:
        return [Reading(None, (), Doubt.CUT, Doubt.CUT.value)] * len(file.pieces)
    return [
        _read_piece(
            piece, [(line - start + 1, m) for line, m in located if 0 <= line - start < piece.last_line]
        )
        for piece, start in zip(file.pieces, file.starts, strict=True)
    ]


def _read_piece(piece: Piece, own: Sequence[tuple[int, dict[str, Any]]]) -> Reading:
    ours = [m for line, m in own if line < piece.code_line and m["severity"] == "error"]
    if ours:
        text = _scrub(piece, ours[0]["data"])
        return Reading(None, (), Doubt.OURS, f"the problem's own statement does not elaborate: {text}")
    mark = f"{piece.namespace}stmt_{piece.nonce}"
    marked = [m["data"].strip() for line, m in own if line == piece.mark_line]
    if not any(said.startswith(mark) and _IS_A_PROP.fullmatch(said, len(mark)) for said in marked):
        return Reading(None, (), Doubt.OURS, "Lean did not see the statement in our scope")
    messages = tuple(
        _message(piece, line, m)
        for line, m in own
        if line >= piece.code_line and line != piece.check_line + 1
    )
    if any(m["severity"] == "error" for _, m in own):
        return Reading(Verdict.FAILED, messages)
    answers = [m["data"] for line, m in own if line == piece.check_line + 1]
    axioms = _axioms(piece, answers[-1]) if answers else None
    if axioms is None:
        return Reading(None, messages, Doubt.SILENT, "Lean did not say which axioms the theorem has")
    forbidden = sorted(axioms - ALLOWED_AXIOMS)
    if forbidden or any(m.text.startswith("declaration uses") for m in messages):
        text = f"the proof depends on {', '.join(forbidden) or 'sorry'}, which is not allowed"
        message = LeanMessage("error", *_name_position(piece), None, None, text)
        return Reading(Verdict.FAILED, (*messages, message))
    return Reading(Verdict.PROVED, messages, raw=json.dumps([m for _, m in own], ensure_ascii=False))


def _axioms(piece: Piece, answer: str) -> frozenset[str] | None:
    """The axioms in the answer to `#print axioms`, or None if it is not exactly such an answer."""
    name = f"'{piece.namespace}check_{piece.nonce}'"
    text = " ".join(answer.split())
    if text == f"{name} does not depend on any axioms":
        return frozenset()
    match = _DEPENDS.fullmatch(text, len(name)) if text.startswith(name) else None
    return frozenset(match[1].split(", ")) if match else None


def _message(piece: Piece, line: int, raw: dict[str, Any]) -> LeanMessage:
    """A message with its position in the model's code. What Lean says in our lines behind it belongs to
    the theorem's name (the check) or to the end of the code (what was left open there)."""
    severity = "info" if raw["severity"] == "information" else raw["severity"]
    text = _scrub(piece, raw["data"])
    column = raw["pos"]["column"]
    if line >= piece.check_line:
        at_name = line == piece.check_line and column > 0
        return LeanMessage(severity, *(_name_position(piece) if at_name else _end(piece)), None, None, text)
    end = raw.get("endPos")
    if end is None:
        return LeanMessage(severity, line - piece.code_line + 1, column, None, None, text)
    end_line, end_column = end["line"] - raw["pos"]["line"] + line, end["column"]
    if end_line >= piece.check_line:
        end_line, end_column = _end(piece)
        end_line += piece.code_line - 1
    return LeanMessage(
        severity,
        line - piece.code_line + 1,
        column,
        end_line - piece.code_line + 1,
        end_column,
        text,
    )


def _name_position(piece: Piece) -> tuple[int, int]:
    tokens = list(significant_tokens(piece.code))
    for word, name in pairwise(tokens):
        if word.text in ("theorem", "lemma") and name.text == piece.name:
            return name.line, name.column
    return _end(piece)


def _end(piece: Piece) -> tuple[int, int]:
    code = piece.code.rstrip()
    return code.count("\n") + 1, len(code) - (code.rfind("\n") + 1)


def _scrub(piece: Piece, text: str) -> str:
    """Without our random names: the same proof gets the same words every time."""
    text = text.replace(f"_root_.{piece.namespace}", "").replace(piece.namespace or "\0", "")
    text = text.replace(f"stmt_{piece.nonce}", "the problem's statement")
    return text.replace(f"check_{piece.nonce}", "the check")
