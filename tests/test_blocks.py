"""Cutting a completion into pieces: fences as a Markdown library finds them, tags, positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from core.format_checks.blocks import FencedBlock, parse_output

FENCES = st.sampled_from(["```", "````", "~~~", "~~~~", "``", "~~"])
LINES = st.one_of(
    st.builds(
        lambda indent, fence, info: " " * indent + fence + info,
        st.integers(0, 4),
        FENCES,
        st.sampled_from(["", " ", "tactics", "lean4", " lean4 x", "a`b", "  \t"]),
    ),
    st.sampled_from(["", "word", "  have h := x", "      deep", "h `x` y"]),
)


def answer_blocks(text: str) -> tuple[FencedBlock, ...]:
    return parse_output(text, think_opened_by_template=False).answer_blocks


@given(st.lists(LINES, max_size=12), st.booleans())
def test_finds_the_fences_that_markdown_finds(lines: list[str], final: bool) -> None:
    text = "\n".join(lines) + ("\n" if final else "")
    expected = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence":
            assert token.map is not None
            tag = next(iter(token.info.split()), "")
            expected.append((tag, token.content.removesuffix("\n"), token.map[0]))
    found = [(b.tag, b.content, text.count("\n", 0, b.start)) for b in answer_blocks(text)]
    assert found == expected


@given(st.lists(LINES | st.sampled_from(["<think>", "</think>", "\r"]), max_size=12), st.booleans())
def test_offsets_lead_back_to_the_text(lines: list[str], by_template: bool) -> None:
    output = parse_output("\r\n".join(lines), think_opened_by_template=by_template)
    assert output.text == "\n".join(lines)
    for block in (*output.thinking_blocks, *output.answer_blocks):
        fence = output.text[block.start : block.content_start].strip()
        assert fence.startswith(("```", "~~~"))
        assert fence.lstrip("`~").strip().startswith(block.tag)
        if not block.content:
            continue
        raw = output.text[block.content_start : block.end].split("\n")
        for line, raw_line in zip(block.content.split("\n"), raw, strict=False):
            assert raw_line.endswith(line)
            assert raw_line[: len(raw_line) - len(line)].strip(" ") == ""


@pytest.mark.parametrize(
    ("text", "by_template", "thinking", "answer"),
    [
        ("<think>a</think>b", False, "a", "b"),
        (" \n<think>a</think>b", False, "a", "b"),
        ("a</think>b", True, "a", "b"),
        ("<think>a</think>b", True, "<think>a", "b"),
        ("a</think>b", False, None, "b"),
        ("<think>a", False, "a", ""),
        ("a", True, "a", ""),
        ("a", False, None, "a"),
        ("</think><think>a", False, "a", ""),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("<think>a<think>b</think>c", False, "a<think>b", "c"),
        ("", False, None, ""),
    ],
)
def test_cut(text: str, by_template: bool, thinking: str | None, answer: str) -> None:
    output = parse_output(text, think_opened_by_template=by_template)
    assert (text[slice(*output.thinking)] if output.thinking else None) == thinking
    assert text[output.answer_start :] == answer


def test_block_by_hand() -> None:
    text = "x\n  ```lean4 k=v\n   a\nb\n  ````\ny"
    (block,) = answer_blocks(text)
    assert block == FencedBlock("lean4", " a\nb", 2, 17, 30, True, None)
    assert text[2:].startswith("  ```lean4")
    assert text[17:].startswith("   a")
    assert text[30:] == "\ny"


def test_each_part_is_a_text_of_its_own() -> None:
    """A fence that is open at `</think>` does not swallow the answer."""
    output = parse_output("<think>```tactics\nx</think>```lean4\ny\n```", think_opened_by_template=False)
    (tactics,), (lean,) = output.thinking_blocks, output.answer_blocks
    assert (tactics.content, tactics.closed) == ("x", False)
    assert (lean.content, lean.closed) == ("y", True)
