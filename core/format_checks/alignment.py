"""Scores how far the tactics blocks of the thinking agree with the final code, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def code_lines(stripped: str) -> list[str]:
    """The lines of code in a text that `strip_comments` gave, each run of white space made one.

    >>> code_lines("  have  h := x  \\n\\n   \\nh")
    ['have h := x', 'h']
    """
    return [" ".join(words) for line in stripped.split("\n") if (words := line.split())]


def alignment(
    blocks: Sequence[Sequence[str]],
    final: Sequence[str],
    score: str,
    *,
    counts_duplicates: bool,
    subcode_lines: float,
) -> float:
    """Agreement in [0, 1] of the lines B of all tactics blocks with the lines F of the final code.

    `score`: "iof" is |B ∩ F| / |F|, "iou" is |B ∩ F| / |B ∪ F|, both of sets, or of multisets where
    duplicates count; "subcode" is the mean over blocks of "more than `subcode_lines` of its lines
    stand in F". 0 where a denominator is 0. ValueError for another score.

    >>> alignment([["a", "b"]], ["b", "c"], "iou", counts_duplicates=False, subcode_lines=0.6)
    0.3333333333333333
    """
    if score == "subcode":
        lines_F = set(final)
        return _share(
            sum(sum(line in lines_F for line in block) > subcode_lines * len(block) for block in blocks),
            len(blocks),
        )
    tactics, code = Counter(line for block in blocks for line in block), Counter(final)
    if not counts_duplicates:
        tactics, code = Counter(set(tactics)), Counter(set(code))
    common = (tactics & code).total()
    if score == "iof":
        return _share(common, code.total())
    if score == "iou":
        return _share(common, (tactics | code).total())
    raise ValueError(f"alignment score {score!r}: must be 'iof', 'iou' or 'subcode'")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
