"""Decides whether the problem's statement stands in a piece of Lean code, token for token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from core.format_checks.lexer import mask_quoted, significant_tokens

_MOST_TRIES = 20  # at a changed statement that are looked at, to say where the change is


@dataclass(frozen=True)
class StatementMatch:
    """Where the statement stands in the code, or how far the best try at it comes (offsets)."""

    tokens: int
    """How many of its tokens agree."""
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


@lru_cache(maxsize=4096)
def _pattern(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the tokens in masked code, where those that quote are blank; only a lexer can confirm."""
    visible = [re.escape(text) for text in tokens if mask_quoted(text).strip()]
    return re.compile(r"(?<![\w.'!?])" + r"\s*".join(visible))


def find_statement(statement: str, code: str) -> StatementMatch | None:
    """The first place in `code` with the statement, else the longest try at it, else None.

    Comments, white space and the `by` and `sorry` at its end aside, each token must be the same;
    inside a comment or a string nothing counts. A try has the first two tokens (`theorem NAME`).
    Linear in the code's length. ValueError if the statement declares nothing.
    """
    wanted = statement_tokens(statement)
    masked = mask_quoted(code)
    for candidate in _pattern(wanted).finditer(masked):
        match = _match_at(wanted, code, candidate.start())
        if match.kept:
            return match
    tries = islice(_pattern(wanted[:2]).finditer(masked), _MOST_TRIES)
    matches = [_match_at(wanted, code, candidate.start()) for candidate in tries]
    return max((match for match in matches if match.tokens >= 2), key=lambda m: m.tokens, default=None)


def _match_at(wanted: tuple[str, ...], code: str, start: int) -> StatementMatch:
    tokens = significant_tokens(code, start)
    end = start
    for agreed, text in enumerate(wanted):
        token = next(tokens, None)
        if token is None or token.text != text:
            return StatementMatch(agreed, False, start, token.start if token else len(code))
        end = token.end
    closing = next(tokens, None)
    if closing is not None and closing.text == "by":
        end = closing.end
    return StatementMatch(len(wanted), True, start, end)


def statement_kept(statement: str, code: str) -> bool:
    """Whether the statement stands in `code` unchanged.

    >>> statement_kept("theorem t : p := by sorry", "theorem t :  -- so\\n p := h")
    True
    """
    match = find_statement(statement, code)
    return match is not None and match.kept
