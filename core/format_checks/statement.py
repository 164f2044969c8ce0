"""Decides whether the problem's statement stands in a piece of Lean code, token for token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from core.format_checks.lexer import TokenKind, mask_quoted, significant_tokens


@dataclass(frozen=True)
class StatementMatch:
    """Where the statement stands in the code, or how far the best try at it comes (offsets)."""

    kept: bool
    start: int
    end: int
    """Behind the statement's last token, a closing `by` included; or where the first token differs."""


@lru_cache(maxsize=4096)
def statement_tokens(statement: str) -> tuple[str, ...]:
    """The texts of a statement's tokens up to and with its last `:=`.

    >>> statement_tokens("theorem t : p :=  -- now\\n  by sorry")
    ('theorem', 't', ':', 'p', ':=')
    """
    texts = [token.text for token in significant_tokens(statement)]
    for closing in ("sorry", "by", ":="):
        if texts and texts[-1] == closing:
            texts.pop()
    if len(texts) < 2:
        raise ValueError(f"statement {statement!r} declares nothing; expected `theorem NAME …`")
    return (*texts, ":=")


def find_statement(statement: str, code: str) -> StatementMatch | None:
    """The first place in `code` with the statement, else the longest try at it, else None.

    Comments, white space and the `by` and `sorry` at its end aside, each token must be the same;
    inside a comment or a string nothing counts. A try has the first two tokens (`theorem NAME`).
    Linear in the code's length. ValueError if the statement declares nothing.
    """
    wanted = statement_tokens(statement)
    masked = mask_quoted(code)
    first, second = map(re.escape, wanted[:2])
    if "«" in second:
        second = ""  # blank in the mask
    best: StatementMatch | None = None
    for candidate in re.finditer(rf"(?<![\w.'!?]){first}\s*{second}", masked):
        match = _match_at(wanted, code, candidate.start())
        if match.kept:
            return match
        tried = match.end >= candidate.end() and match.end > match.start
        if tried and (best is None or match.end - match.start > best.end - best.start):
            best = match
    return best


def _match_at(wanted: tuple[str, ...], code: str, start: int) -> StatementMatch:
    tokens = significant_tokens(code, start)
    end = start
    for text in wanted:
        token = next(tokens, None)
        if token is None:
            return StatementMatch(False, start, len(code))
        if token.text != text:
            return StatementMatch(False, start, token.start)
        end = token.end
    closing = next(tokens, None)
    if closing is not None and closing.kind is TokenKind.KEYWORD and closing.text == "by":
        end = closing.end
    return StatementMatch(True, start, end)


def statement_kept(statement: str, code: str) -> bool:
    """Whether the statement stands in `code` unchanged.

    >>> statement_kept("theorem t : p := by sorry", "theorem t :  -- so\\n p := h")
    True
    """
    match = find_statement(statement, code)
    return match is not None and match.kept
