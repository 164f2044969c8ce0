"""Measures repetition in text: significant lines, n-grams, and loops at the end."""

from __future__ import annotations

import re
from collections import Counter

WORD = re.compile(r"\w+")
_PIECE = re.compile(r"\w+|\S")
_LOOP_WINDOW = 4000  # characters at the end of a text that are searched for a loop
_STOP_WORDS = frozenset(
    """
    a about after all also an and any are as at be because been but by can could did do does for
    from get go had has have he her his how i if in into is it its just let like may me more my no
    not now of on one only or other our out over she should so some such than that the their them
    then there these they this those to two up us use was we were what when where which while who
    will with would you your
    """.split()  # noqa: SIM905
)


def repeated_lines(text: str, significant_words: int, times: int) -> list[tuple[int, int]]:
    """Offset of the occurrence number `times`, and the number of occurrences, of each repeated line.

    A line is its text without white space at the ends. It is significant from `significant_words`
    words on that are no stop words; only such lines count.
    """
    stripped = [line.strip() for line in text.split("\n")]
    counts = {line: n for line, n in Counter(stripped).items() if n >= times and line}
    often = {
        line: n
        for line, n in counts.items()
        if sum(word.lower() not in _STOP_WORDS for word in WORD.findall(line)) >= significant_words
    }
    if not often:
        return []
    found, seen, offset = [], Counter(), 0
    for raw, line in zip(text.split("\n"), stripped, strict=True):
        seen[line] += 1
        if seen[line] == times and line in often:
            found.append((offset + raw.index(line), often[line]))
        offset += len(raw) + 1
    return found


def repeated_ngram_share(text: str, n: int) -> float:
    """Share of the n-grams of words in `text` that occurred before in it; 0 for a short text.

    >>> repeated_ngram_share("a b a b a", 2)  # ab ba ab ba: two of four
    0.5
    """
    words = WORD.findall(text)
    total = len(words) - n + 1
    if total <= 0:
        return 0.0
    return 1 - len(set(zip(*(words[i:] for i in range(n)), strict=False))) / total


def tail_loop(text: str) -> tuple[int, int]:
    """The piece that `text` ends in over and over: its length in words and symbols, and its copies.

    Of all pieces the one with the most copies, looked for in the last 4,000 characters; (0, 0) for
    a blank text. A copy that is cut at either end does not count.

    >>> tail_loop("so and again and again and again")
    (2, 3)
    """
    pieces = _PIECE.findall(text[-_LOOP_WINDOW:])[::-1]
    best = (0, 0)
    # border[i]: length of the longest proper prefix of pieces[: i + 1] that also ends it; so the
    # shortest period of that stretch is i + 1 - border[i] (Knuth, Morris and Pratt).
    border = [0] * len(pieces)
    length = 0
    for i, piece in enumerate(pieces):
        while i and length and pieces[length] != piece:
            length = border[length - 1]
        if i and pieces[length] == piece:
            length += 1
        border[i] = length
        period = i + 1 - length
        copies = (i + 1) // period
        if copies > best[1]:
            best = (period, copies)
    return best
