"""Reads Lean 4 source as Lean does: comments, strings, names and symbols, each with its position.

Every other text function of the project stands on `tokenize`. It follows `Lean.Parser.tokenFn` and
`Lean.Parser.whitespace` of Lean 4.35; notation that a library declares is not known here, so a
symbol such as `∑'` may come in pieces, but never swallows a comment or a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class TokenKind(Enum):
    """What a piece of Lean source is."""

    IDENTIFIER = "identifier"  # with its dots: `Nat.add`, `h₁'`, `«odd name».x`; quoted: `` `x ``
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

# The words in the token table built into Lean 4.35, and those that Init and Mathlib reserve.
KEYWORDS = frozenset(
    """
    Prop Sort StateRefT Type _ abbrev add_decl_doc assert! attribute axiom binder_predicate break
    builtin_initialize by catch class coinductive coinductive_fixpoint continue dbg_trace
    debug_assert! declare_syntax_cat decreasing_by def deriving do elab elab_rules else end example
    export extends finally for forall from fun have haveI hiding if import in include inductive
    inductive_fixpoint inferInstanceAs infix infixl infixr init_quot initialize instance
    leading_parser let letI let_expr let_fun let_tmp local macro macro_rules match match_expr meta
    mut mutual namespace no_index nofun nomatch noncomputable nonrec notation omit opaque open panic!
    partial partial_fixpoint postfix prefix private protected public renaming repeat return scoped
    section set_option show show_term_elab sorry structure suffices syntax termination_by
    termination_by? then theorem trailing_parser try universe unless unreachable! unsafe until
    variable where while with λ
    at calc haveI' let! letI' lemma prelude run_cmd run_elab run_meta using
    """.split()  # noqa: SIM905
)

# Symbols of more than one character: Lean's own, Init's and those of Mathlib that hold a `'`.
_LONG_SYMBOLS = """
    := => -> <- <= >= != == === && || ++ :: ^^ .. ... << >> <<< >>> ||| &&& ^^^ <| |> |>. <|> <;>
    $> <$ <$> <*> *> <* >>= =<< >=> <=< <&> // @[ #[ %[ @& ⁻¹ ⁻¹' '' ∑' ∏' ∃! |- <+ <+: <:+ <:+:
    ~~~ ?? !! [| |] ⟨| |⟩ $[ .( .{ `(
    """.split()  # noqa: SIM905


def _longest_match(symbols: Iterable[str]) -> str:
    """A pattern for the longest of `symbols` at a position: one branch a first character."""
    rests: dict[str, list[str]] = {}
    for symbol in sorted(symbols, key=len, reverse=True):
        rests.setdefault(symbol[0], []).append(re.escape(symbol[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in rests.items())


_ID_FIRST = (
    "A-Za-z_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f\u0391-\u039f\u03a1\u03a2\u03a4-\u03a9\u03b1-\u03ba"
    "\u03bc-\u03fb\u1f00-\u1ffe\u2100-\u214f\U0001d49c-\U0001d59f"
)
_ID_REST = _ID_FIRST + "0-9'!?\u2080-\u2089\u2090-\u209c\u1d62-\u1d6a\u2c7c"
_DIGITS = "[0-9](?:_*[0-9])*+"
_NUMBER = (
    r"0[xX](?:_*[0-9a-fA-F])++|0[bB](?:_*[01])++|0[oO](?:_*[0-7])++"
    rf"|{_DIGITS}(?:\.(?:{_DIGITS}|(?=[eE][-+]?[0-9])|(?![.{_ID_FIRST}«])))?+(?:[eE][-+]?{_DIGITS})?+"
)
_ID_PART = f"(?:[{_ID_FIRST}][{_ID_REST}]*+|«[^»]*+»)"
_STRING_REST = r'[^"\\]*+(?:\\.[^"\\]*+)*+"'
_COMMANDS = (
    r"\#(?:check_failure|check|eval!|eval|exit|print|synth|reduce|guard_msgs|guard|version|where|help)"
)
_NEVER_LEAN = (
    "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\u3000\ufeff\ud800-\udfff"
)
_LONG_FIRST = re.escape("".join({symbol[0] for symbol in _LONG_SYMBOLS}))

# What may stand at a position, tried in this order. The last four only open a token; `_spans`
# reads on to the mark that closes it.
_NEXT = re.compile(
    rf"""
    (?P<space>         [ \t\r\n]++)
  | (?P<single>        [^`{_ID_FIRST}{_NEVER_LEAN}0-9«{{}}"/{_LONG_FIRST}])
  | (?P<interpolating> (?:s!|m!|f!|throwError|dbg_trace)(?![{_ID_REST}]|\.[{_ID_FIRST}«]))
  | (?P<raw>           r\#*+")
  | (?P<name>          `?+{_ID_PART}(?:\.{_ID_PART})*+ | {_COMMANDS})
  | (?P<number>        (?<=\.)(?<!\.\.)[0-9]++ | {_NUMBER})
  | (?P<char>          '(?:\\(?:x..|u....|.)|[^\\'])')
  | (?P<bad>           [{_NEVER_LEAN}]++ | '(?!'))
  | (?P<comment>       --[^\n]*+)
  | (?P<block>         /-)
  | (?P<string>        "{_STRING_REST})
  | (?P<quote>         ")
  | (?P<unclosed>      «)
  | (?P<symbol>        [{{}}] | {_longest_match(_LONG_SYMBOLS)} | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_GROUP = _NEXT.groupindex
_KIND_OF_GROUP = {
    _GROUP["space"]: TokenKind.WHITESPACE,
    _GROUP["single"]: TokenKind.SYMBOL,
    _GROUP["interpolating"]: TokenKind.IDENTIFIER,
    _GROUP["name"]: TokenKind.IDENTIFIER,
    _GROUP["number"]: TokenKind.NUMBER,
    _GROUP["char"]: TokenKind.CHAR,
    _GROUP["bad"]: TokenKind.ERROR,
    _GROUP["comment"]: TokenKind.LINE_COMMENT,
    _GROUP["string"]: TokenKind.STRING,
    _GROUP["symbol"]: TokenKind.SYMBOL,
}
_PLAIN_GROUPS = frozenset(range(_GROUP["space"], _GROUP["interpolating"] + 1)) | {
    _GROUP["name"],
    _GROUP["number"],
}
_SPACE, _INTERPOLATING, _STRING, _SYMBOL = (
    _GROUP[name] for name in ("space", "interpolating", "string", "symbol")
)
_WORD = re.compile(rf"(?P<name>{_ID_PART}(?:\.{_ID_PART})*+)|(?<=\.)(?<!\.\.)[0-9]++|{_NUMBER}")
_BLOCK_EDGE = re.compile(r"-/|/-")
_LINE_TRIVIA = re.compile(r"(?:[ \t\r\n]|--[^\n]*+)*+")
_INTERPOLATED_REST = re.compile(r'[^"\\{]*+(?:\\.[^"\\{]*+)*+["{]', re.DOTALL)


def _spans(source: str, position: int = 0, *, plain: bool) -> Iterator[tuple[TokenKind, int, int]]:
    """Kind, start and end of each token; without `plain`, only of those that quote other text
    (comments, strings, characters, names with `«»`) and of errors."""
    has_quoted_names = "«" in source
    length = len(source)
    match_next = _NEXT.match
    interpolating = False  # the last token that is neither space nor comment was `s!` or its like
    braces: list[int] = []  # per interpolated string around us: open `{` of the term so far
    while position < length:
        match = match_next(source, position)
        assert match is not None
        group = match.lastindex
        end = match.end()
        if group in _PLAIN_GROUPS:
            if group != _SPACE:
                interpolating = group == _INTERPOLATING
            if plain or (has_quoted_names and "«" in match.group()):
                yield _KIND_OF_GROUP[group], position, end
        elif group == _SYMBOL:
            kind = TokenKind.SYMBOL
            interpolating = False
            if braces and (mark := source[end - 1]) in "{}":
                if mark == "{":  # `.{` too
                    braces[-1] += 1
                elif braces[-1]:
                    braces[-1] -= 1
                else:
                    kind, end = _interpolated_rest(source, position + 1)
                    if source[end - 1] != "{":
                        braces.pop()
            if plain or kind is not TokenKind.SYMBOL:
                yield kind, position, end
        else:
            if group in _KIND_OF_GROUP and not (interpolating and group == _STRING):
                kind = _KIND_OF_GROUP[group]
            else:
                kind, end = _long_token(source, position, match, interpolating)
                if interpolating and kind is TokenKind.STRING and source[end - 1] == "{":
                    braces.append(0)
            if kind not in COMMENT_KINDS:
                interpolating = False
            yield kind, position, end
        position = end


def _interpolated_rest(source: str, start: int) -> tuple[TokenKind, int]:
    closed = _INTERPOLATED_REST.match(source, start)
    return (TokenKind.STRING, closed.end()) if closed else (TokenKind.ERROR, len(source))


def _long_token(
    source: str, position: int, match: re.Match[str], interpolating: bool
) -> tuple[TokenKind, int]:
    """Kind and end of the token that `match` opens and that only a closing mark ends."""
    if match.lastgroup == "block":
        if source.startswith(("-", "!"), position + 2):
            kind, end = TokenKind.DOC_COMMENT, _end_of_doc_comment(source, position + 3)
        else:  # a `/` right behind `/-` closes nothing
            kind, end = TokenKind.BLOCK_COMMENT, _end_of_comment(source, position + 3)
        if end is not None:
            return kind, end
    elif match.lastgroup == "raw":
        closing = '"' + "#" * (match.end() - position - 2)
        found = source.find(closing, match.end())
        if found >= 0:
            return TokenKind.STRING, found + len(closing)
    elif interpolating and source[position] == '"':
        return _interpolated_rest(source, position + 1)
    return TokenKind.ERROR, len(source)


def _end_of_comment(source: str, position: int) -> int | None:
    """Behind the `-/` that closes a comment whose text begins at `position`; None if none does."""
    depth = 1
    for edge in _BLOCK_EDGE.finditer(source, position):
        depth += 1 if edge.group() == "/-" else -1
        if depth == 0:
            return edge.end()
    return None


def _end_of_doc_comment(source: str, position: int) -> int | None:
    """The same for the text behind `/--`, which is a token to Lean: white space and comments may
    follow before the text begins, so `/-- -- -/` is still open."""
    while True:
        match = _LINE_TRIVIA.match(source, position)
        assert match is not None
        position = match.end()
        if source[position : position + 2] != "/-" or source[position + 2 : position + 3] in "-!":
            return _end_of_comment(source, position)
        inner = _end_of_comment(source, position + 3)
        if inner is None:
            return None
        position = inner


def iter_tokens(source: str, start: int = 0) -> Iterator[Token]:
    """The tokens of `source[start:]` one after another, for callers that may stop early."""
    line, line_start = 1, start
    for kind, begin, end in _spans(source, start, plain=True):
        text = source[begin:end]
        if kind is TokenKind.IDENTIFIER and (text in KEYWORDS or text[0] == "#"):
            kind = TokenKind.KEYWORD
        yield Token(kind, text, begin, end, line, begin - line_start)
        if kind is not TokenKind.SYMBOL and "\n" in text:
            line += text.count("\n")
            line_start = source.rindex("\n", begin, end) + 1


def tokenize(source: str) -> list[Token]:
    """All tokens of `source`, comments and white space too, in time linear in its length.

    Their texts, joined, are `source` again. Nothing is an exception: what Lean would not read is
    an ERROR token.

    >>> [t.text for t in tokenize('f x -- "no string"')]
    ['f', ' ', 'x', ' ', '-- "no string"']
    """
    return list(iter_tokens(source))


def significant_tokens(source: str, start: int = 0) -> Iterator[Token]:
    """The tokens that mean something to Lean: no white space, no comments, no doc comments.

    `start`: the offset of a token to begin with; lines and columns then count from there.
    """
    return (
        token
        for token in iter_tokens(source, start)
        if token.kind is not TokenKind.WHITESPACE and token.kind not in COMMENT_KINDS
    )


@lru_cache(maxsize=16)
def _quoted_spans(source: str) -> tuple[tuple[TokenKind, int, int], ...]:
    return tuple(_spans(source, plain=False))


def _blank(source: str, spans: Iterable[tuple[int, int]]) -> str:
    """`source` with each character of the spans but the line ends replaced by a space."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    pieces, position = [], 0
    for start, end in merged:
        pieces.append(source[position:start])
        pieces.append("\n".join(" " * len(line) for line in source[start:end].split("\n")))
        position = end
    pieces.append(source[position:])
    return "".join(pieces)


def comment_spans(source: str) -> list[tuple[int, int]]:
    """Start and end of each comment, doc comments too; an unclosed one reaches to the end.

    >>> comment_spans("a -- b")
    [(2, 6)]
    """
    return [
        (start, end)
        for kind, start, end in _quoted_spans(source)
        if kind in COMMENT_KINDS or (kind is TokenKind.ERROR and source.startswith("/-", start))
    ]


def strip_comments(source: str) -> str:
    """`source` with each comment character but the line ends replaced by a space.

    What remains has the line and column that it had.

    >>> strip_comments("a /- b\\nc -/ d")
    'a     \\n     d'
    """
    return _blank(source, comment_spans(source))


def mask_quoted(source: str) -> str:
    """`strip_comments` that blanks strings, characters and `«»` names as well: code words only."""
    return _blank(source, ((start, end) for _, start, end in _quoted_spans(source)))


def code_words(masked: str) -> Iterator[tuple[str, int]]:
    """Text and offset of each name and keyword in a text that `mask_quoted` gave.

    >>> list(code_words(mask_quoted("axiom.x -- axiom")))
    [('axiom.x', 0)]
    """
    return ((match["name"], match.start()) for match in _WORD.finditer(masked) if match["name"])
