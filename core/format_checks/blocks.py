"""Cuts a completion into its thinking, its answer and their fenced blocks, as Markdown does.

Fences follow CommonMark 4.5: at least three backticks or tildes, indented by at most three spaces,
closed by a line of at least as many of the same mark, or by the end of the text. What stands inside
a fence has no say in it: a fence line within a Lean string or comment closes the block all the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

_THINK_TAG = re.compile(r"</?think>")
_FENCE_LINE = re.compile(r"^( {0,3})(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block, its offsets counted in `Output.text`."""

    tag: str
    """First word behind the opening fence: "tactics", "lean4", or "" if there is none."""
    content: str
    """The lines between the fences, the fence's indentation removed, without the last line end."""
    start: int
    """Offset of the opening fence's line."""
    content_start: int
    """Offset of the first line of the content."""
    end: int
    """Offset behind the closing fence's line."""
    closed: bool
    nested_at: int | None
    """Offset of the first line inside that looks like another opening fence."""


@dataclass(frozen=True)
class Output:
    """A completion cut into pieces. Nothing is judged here; whatever is missing is None or empty."""

    text: str
    """The completion with `\\n` for each Windows line end; lines and columns stay what they were."""
    opens: tuple[int, ...]
    """Offsets of all `<think>`, wherever they stand."""
    closes: tuple[int, ...]
    """Offsets of all `</think>`."""
    thinking: tuple[int, int] | None
    """Start and end of the text between the tags; to the end of the text if nothing closes it."""
    answer_start: int
    thinking_blocks: tuple[FencedBlock, ...]
    answer_blocks: tuple[FencedBlock, ...]

    def blocks(self, tag: str) -> tuple[FencedBlock, ...]:
        """The blocks with this tag, of thinking and answer."""
        return tuple(b for b in (*self.thinking_blocks, *self.answer_blocks) if b.tag == tag)


class Positions:
    """Line (from 1) and column (from 0, code points) of an offset in a text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer(r"\n", text))]

    def at(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1]


def parse_output(completion: str, *, think_opened_by_template: bool) -> Output:
    """Cut `completion` at its first `<think>` and the `</think>` behind it, and find the fences.

    Thinking and answer are Markdown texts of their own: a fence left open in one ends with it.
    Tags count wherever they stand, as they do for chat templates, in code and in strings too.
    """
    text = completion.replace("\r\n", "\n")
    tags = [(match.group(), match.start()) for match in _THINK_TAG.finditer(text)]
    opens = tuple(offset for tag, offset in tags if tag == "<think>")
    closes = tuple(offset for tag, offset in tags if tag == "</think>")
    thinking, answer_start = None, 0
    if think_opened_by_template or opens:
        start = 0 if think_opened_by_template else opens[0] + len("<think>")
        end = next((offset for offset in closes if offset >= start), None)
        thinking = (start, len(text) if end is None else end)
        answer_start = len(text) if end is None else end + len("</think>")
    elif closes:
        answer_start = closes[0] + len("</think>")
    return Output(
        text=text,
        opens=opens,
        closes=closes,
        thinking=thinking,
        answer_start=answer_start,
        thinking_blocks=_fenced_blocks(text, *thinking) if thinking else (),
        answer_blocks=_fenced_blocks(text, answer_start, len(text)),
    )


def _fenced_blocks(text: str, start: int, end: int) -> tuple[FencedBlock, ...]:
    part = text[start:end]
    blocks: list[FencedBlock] = []
    opening: re.Match[str] | None = None
    nested_at: int | None = None

    def close(content_end: int, block_end: int, closed: bool) -> None:
        assert opening is not None
        content_start = min(opening.end() + 1, content_end)
        content = part[content_start:content_end].removesuffix("\n")
        if indent := len(opening.group(1)):
            content = re.sub(rf"^ {{1,{indent}}}", "", content, flags=re.MULTILINE)
        tag = next(iter(opening.group(3).split()), "")
        offsets = (start + opening.start(), start + content_start, start + block_end)
        blocks.append(FencedBlock(tag, content, *offsets, closed, nested_at))

    for line in _FENCE_LINE.finditer(part):
        mark, info = line.group(2), line.group(3).strip()
        may_open = mark[0] == "~" or "`" not in info
        if opening is None:
            opening, nested_at = (line if may_open else None), None
        elif mark.startswith(opening.group(2)) and not info:
            close(line.start(), line.end(), True)
            opening = None
        elif nested_at is None and mark[0] == opening.group(2)[0] and info and may_open:
            nested_at = start + line.start()
    if opening is not None:
        close(len(part), len(part), False)
    return tuple(blocks)
