"""Reads Lean 4 source as Lean does: comments, strings, names and symbols, each with its position.

Every other text function of the project stands on `tokenize`. It follows `Lean.Parser.tokenFn` and
`Lean.Parser.whitespace` of Lean 4.35; notation that a library declares is not known here, so a
symbol such as `∑'` may come in pieces, but never swallows a comment or a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class TokenKind(Enum):
    """What a piece of Lean source is."""

    IDENTIFIER = "identifier"  # with its dots: `Nat.add`, `h₁'`, `«odd name».x`
    KEYWORD = "keyword"  # `theorem`, `fun`, `sorry`, `#eval`
    NUMBER = "number"
    STRING = "string"  # raw and interpolated ones too; `s!"a {x} b"` is `s!`, `"a {`, x, `} b"`
    CHAR = "char"
    SYMBOL = "symbol"
    LINE_COMMENT = "line comment"  # without its line end
    BLOCK_COMMENT = "block comment"
    DOC_COMMENT = "doc comment"  # `/-- -/` and `/-! -/`
    WHITESPACE = "whitespace"
    ERROR = "error"  # unclosed comment, string or `«` (to the end), or a character Lean never takes


class Token(NamedTuple):
    """A piece of the source; `source[token.start : token.end] == token.text`."""

    kind: TokenKind
    text: str
    start: int
    end: int
    line: int
    """From 1; only `\\n` ends a line."""
    column: int
    """From 0, in code points."""


COMMENT_KINDS = frozenset({TokenKind.LINE_COMMENT, TokenKind.BLOCK_COMMENT, TokenKind.DOC_COMMENT})

KEYWORDS = frozenset(
    [
        "_",
        "Prop",
        "Sort",
        "Type",
        "abbrev",
        "at",
        "attribute",
        "axiom",
        "by",
        "calc",
        "class",
        "coinductive_fixpoint",
        "csimp",
        "dbg_trace",
        "declare_syntax_cat",
        "decreasing_by",
        "def",
        "deriving",
        "do",
        "else",
        "elab",
        "elab_rules",
        "end",
        "erase",
        "example",
        "export",
        "extends",
        "finally",
        "for",
        "forall",
        "from",
        "fun",
        "have",
        "haveI",
        "haveI'",
        "hiding",
        "if",
        "import",
        "in",
        "inductive",
        "inductive_fixpoint",
        "infix",
        "infixl",
        "infixr",
        "init_quot",
        "initialize",
        "instance",
        "include",
        "irreducible_def",
        "let",
        "let!",
        "letI",
        "letI'",
        "lemma",
        "local",
        "local_instance",
        "macro",
        "macro_rules",
        "match",
        "mut",
        "mutual",
        "namespace",
        "nofun",
        "nomatch",
        "noncomputable",
        "nonrec",
        "notation",
        "omit",
        "opaque",
        "open",
        "partial",
        "partial_fixpoint",
        "postfix",
        "prefix",
        "prelude",
        "private",
        "protected",
        "public",
        "return",
        "run_cmd",
        "run_elab",
        "run_meta",
        "scoped",
        "section",
        "set_option",
        "show",
        "sorry",
        "structure",
        "suffices",
        "syntax",
        "then",
        "theorem",
        "try",
        "unless",
        "universe",
        "unsafe",
        "until",
        "using",
        "variable",
        "where",
        "while",
        "with",
        "λ",
    ]
)

# Symbols of more than one character, of Lean's own parsers, Init and Mathlib. Longest first.
_LONG_SYMBOLS = sorted(
    [
        ":=",
        "=>",
        "->",
        "<-",
        "<=",
        ">=",
        "!=",
        "==",
        "===",
        "&&",
        "||",
        "++",
        "::",
        "^^",
        "++=",
        "..",
        "...",
        "..=",
        "<<",
        ">>",
        "<<<",
        ">>>",
        "|||",
        "&&&",
        "^^^",
        "<|",
        "|>",
        "|>.",
        "<|>",
        "<;>",
        "$>",
        "<$",
        "<$>",
        "<*>",
        "*>",
        "<*",
        ">>=",
        "=<<",
        ">=>",
        "<=<",
        "<&>",
        "//",
        "@[",
        "#[",
        "%[",
        "@&",
        "-/",
        "⁻¹",
        "⁻¹'",
        "''",
        "∃!",
        "×ˢ",
        "∑'",
        "∏'",
        "|-",
        "<+",
        "<+:",
        "<:+",
        "<:+:",
        "~~~",
        "~~",
        "=~",
        "??",
        "!!",
        "##",
        "[|",
        "|]",
        "⟨|",
        "|⟩",
        "→ₗ",
        "→+",
        "→*",
        "→+*",
        "→₀",
        "→ₐ",
        "≃ₗ",
        "≃+",
        "≃*",
        "≃+*",
        "≃ₐ",
        "∘ₗ",
        "••",
        "ᵒᵖ",
        "==>",
        "$[",
        ".(",
        ",*",
    ],
    key=len,
    reverse=True,
)

_ID_FIRST = (
    "A-Za-z_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f\u0391-\u039f\u03a1\u03a2\u03a4-\u03ba"
    "\u03bc-\u03fb\u1f00-\u1ffe\u2100-\u214f\U0001d49c-\U0001d59f"
)
_ID_REST = _ID_FIRST + "0-9'!?\u2080-\u2089\u2090-\u209c\u1d62-\u1d6a\u2c7c"
_ID_PART = f"(?:[{_ID_FIRST}][{_ID_REST}]*+|«[^»]*+»)"

# The groups are tried in this order at each position; the names of the last four say what
# `_Scanner` has to read on from there.
_NEXT = re.compile(
    rf"""
    (?P<space>      [ \t\r\n]++)
  | (?P<raw>        r\#*+")
  | (?P<name>       {_ID_PART}(?:\.{_ID_PART})*+ | \#[a-z_]++)
  | (?P<number>     0[xX][0-9a-fA-F_]++ | 0[bB][01_]++ | 0[oO][0-7_]++
                  | [0-9](?:_*[0-9])*+ (?:\.[0-9](?:_*[0-9])*+)? (?:[eE][-+]?[0-9]++)?)
  | (?P<char>       '(?:\\(?:x..|u....|.)|[^\\'])')
  | (?P<bad>        [\x00-\x1f\x7f-\x9f\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000
                     \ufeff\ud800-\udfff] | '(?!'))
  | (?P<comment>    --[^\n]*+)
  | (?P<block>      /-)
  | (?P<quote>      ")
  | (?P<unclosed>   «)
  | (?P<symbol>     {"|".join(map(re.escape, _LONG_SYMBOLS))} | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_KIND_OF_GROUP = {
    _NEXT.groupindex[group]: kind
    for group, kind in {
        "space": TokenKind.WHITESPACE,
        "number": TokenKind.NUMBER,
        "char": TokenKind.CHAR,
        "bad": TokenKind.ERROR,
        "comment": TokenKind.LINE_COMMENT,
        "symbol": TokenKind.SYMBOL,
    }.items()
}
_NAME, _SYMBOL = _NEXT.groupindex["name"], _NEXT.groupindex["symbol"]
_FIELD_INDEX = re.compile(r"[0-9]+")
_BLOCK_EDGE = re.compile(r"-/|/-")
_STRING_REST = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_INTERPOLATED_REST = re.compile(r'[^"\\{]*+(?:\\.[^"\\{]*+)*+["{]', re.DOTALL)
_INTERPOLATING = frozenset({"s!", "m!", "f!", "throwError", "dbg_trace"})


def _end_of_block_comment(source: str, start: int) -> int | None:
    """Offset behind the `-/` that closes the `/-` at `start`, nested ones counted; None if none."""
    depth = 1
    for edge in _BLOCK_EDGE.finditer(source, start + 2):
        depth += 1 if edge.group() == "/-" else -1
        if depth == 0:
            return edge.end()
    return None


def iter_tokens(source: str) -> Iterator[Token]:
    """The tokens of `source` one after another; `tokenize` for callers that may stop early."""
    position, line, line_start, length = 0, 1, 0, len(source)
    match_next = _NEXT.match
    previous = ""  # the last token that is neither white space nor comment
    # One entry for each interpolated string we are inside of: open `{` of the term so far.
    braces: list[int] = []
    while position < length:
        match = match_next(source, position)
        assert match is not None
        group = match.lastindex
        end = match.end()
        if group == _SYMBOL:
            kind = TokenKind.SYMBOL
            if braces and (text := match.group()) in "{}":
                if text == "{":
                    braces[-1] += 1
                elif braces[-1]:
                    braces[-1] -= 1
                else:
                    kind, end = _string_rest(source, position + 1, _INTERPOLATED_REST)
                    if source[end - 1] != "{":
                        braces.pop()
        elif group == _NAME:
            kind = TokenKind.IDENTIFIER
            text = match.group()
            if text in KEYWORDS or text[0] == "#":
                kind = TokenKind.KEYWORD
        elif group in _KIND_OF_GROUP:
            kind = _KIND_OF_GROUP[group]
            if kind is TokenKind.NUMBER and previous == "." and source[position - 1] == ".":
                index = _FIELD_INDEX.match(source, position)  # `h.1.2` is h, first, second
                assert index is not None
                end = index.end()
        else:
            kind, end = _long_token(source, position, match, previous)
            if kind is TokenKind.STRING and source[end - 1] == "{":
                braces.append(0)
        text = source[position:end]
        yield Token(kind, text, position, end, line, position - line_start)
        if kind is not TokenKind.WHITESPACE and kind not in COMMENT_KINDS:
            previous = text
        if "\n" in text:
            line += text.count("\n")
            line_start = source.rindex("\n", position, end) + 1
        position = end


def _string_rest(source: str, start: int, rest: re.Pattern[str]) -> tuple[TokenKind, int]:
    closed = rest.match(source, start)
    return (TokenKind.STRING, closed.end()) if closed else (TokenKind.ERROR, len(source))


def _long_token(
    source: str, position: int, match: re.Match[str], previous: str
) -> tuple[TokenKind, int]:
    """Kind and end of the token that `match` opens and that only a closing mark ends."""
    group = match.lastgroup
    if group == "block":
        end = _end_of_block_comment(source, position)
        if end is None:
            return TokenKind.ERROR, len(source)
        is_doc = source[position + 2] in "-!"
        return (TokenKind.DOC_COMMENT if is_doc else TokenKind.BLOCK_COMMENT), end
    if group == "raw":
        closing = '"' + "#" * (len(match.group()) - 2)
        found = source.find(closing, match.end())
        if found < 0:
            return TokenKind.ERROR, len(source)
        return TokenKind.STRING, found + len(closing)
    if group == "quote":
        rest = _INTERPOLATED_REST if previous in _INTERPOLATING else _STRING_REST
        return _string_rest(source, position + 1, rest)
    assert group == "unclosed"
    return TokenKind.ERROR, len(source)


def tokenize(source: str) -> list[Token]:
    """All tokens of `source`, comments and white space too, in time linear in its length.

    Their texts, joined, are `source` again. Nothing is an exception: what Lean would not read is
    an ERROR token.

    >>> [t.text for t in tokenize('f x -- "no string"')]
    ['f', ' ', 'x', ' ', '-- "no string"']
    """
    return list(iter_tokens(source))


def significant_tokens(source: str) -> Iterator[Token]:
    """The tokens that mean something to Lean: no white space, no comments, no doc comments."""
    return (
        token
        for token in iter_tokens(source)
        if token.kind is not TokenKind.WHITESPACE and token.kind not in COMMENT_KINDS
    )


def strip_comments(source: str) -> str:
    """`source` with each comment character but the line ends replaced by a space.

    What remains has the line and column that it had. An unclosed comment is one to the end.

    >>> strip_comments("a /- b\\nc -/ d")
    'a     \\n     d'
    """
    pieces = []
    for token in iter_tokens(source):
        if token.kind in COMMENT_KINDS or is_unclosed_comment(token):
            pieces.append("\n".join(" " * len(part) for part in token.text.split("\n")))
        else:
            pieces.append(token.text)
    return "".join(pieces)


def is_unclosed_comment(token: Token) -> bool:
    """Whether `token` is the rest of a source whose last block comment never ends."""
    return token.kind is TokenKind.ERROR and token.text.startswith("/-")
