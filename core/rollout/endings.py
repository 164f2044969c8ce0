"""Where a completion ends before its end-of-turn token or the response limit: stop texts and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.rollout import FinishReason

LOOP_EVERY = 32  # tokens between looks for a loop: a look costs more than a token
LONGEST_PIECE = 512  # tokens of the piece that a loop repeats
SHORTEST_LOOP = 64  # tokens of all copies together: "    " or "0000" is no loop


class Endings:
    """Looks at completions while they grow, at lengths that depend on nothing but the settings, so that
    every engine and every batch cuts at the same token."""

    def __init__(self, tokenizer: Any, stop: Sequence[str], loop_at: int | None) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._loop_at = loop_at
        self._stop_bytes = max((len(text.encode()) for text in stop), default=0)
        self.every = 1 if stop else LOOP_EVERY if loop_at else 0
        """Tokens between two looks at a completion; 0: there is nothing to look for."""

    def find(self, ids: Sequence[int], seen: int) -> tuple[int, FinishReason] | None:
        """Length and reason of the first ending of `ids` that is longer than `seen` tokens."""
        for length in range(seen + 1, len(ids) + 1):
            # A token has a byte at least, so a stop text that ends here stands in so many tokens.
            tail = ids[max(0, length - self._stop_bytes) : length]
            if self._stop and any(text in self._tokenizer.decode(tail) for text in self._stop):
                return length, "stop"
            if self._loop_at and length % LOOP_EVERY == 0 and ends_in_loop(ids[:length], self._loop_at):
                return length, "loop"
        return None


def ends_in_loop(ids: Sequence[int], copies: int) -> bool:
    """Whether `ids` ends in that many copies of one piece, of `SHORTEST_LOOP` tokens together at least.

    >>> ends_in_loop([9] + [1, 2, 3] * 30, copies=25), ends_in_loop([1, 2, 3] * 5, copies=4)
    (True, False)
    """
    tail = np.asarray(ids[-LONGEST_PIECE * copies :])
    last = len(tail) - 1
    for start in np.flatnonzero(tail[:-1] == tail[-1])[::-1]:
        piece = last - start
        length = max(piece * copies, -(-SHORTEST_LOOP // piece) * piece)
        if length <= len(tail) and np.array_equal(tail[-length:-piece], tail[-length + piece :]):
            return True
    return False
