"""Checks a completion against the recipe's format: every fault found, each with its place and size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from core.format_checks.alignment import alignment, code_lines
from core.format_checks.blocks import FencedBlock, Output, parse_output
from core.format_checks.lexer import code_words, mask_quoted, strip_comments
from core.format_checks.repetition import WORD, repeated_lines, repeated_ngram_share, tail_loop
from core.format_checks.report import Finding, FormatReport
from core.format_checks.statement import StatementMatch, find_statement, statement_tokens
from core.format_checks.thresholds import FormatThresholds
from core.problems import Problem


@dataclass(frozen=True)
class Parsed:
    """A completion taken apart, with what several checks need; all offsets count in `output.text`."""

    output: Output
    problem: Problem
    thresholds: FormatThresholds
    truncated: bool

    @cached_property
    def thinking(self) -> str:
        return self.output.text[slice(*self.output.thinking)] if self.output.thinking else ""

    @cached_property
    def tactics(self) -> tuple[FencedBlock, ...]:
        return tuple(b for b in self.output.thinking_blocks if b.tag == "tactics")

    @cached_property
    def lean(self) -> FencedBlock | None:
        return next((b for b in self.output.answer_blocks if b.tag == "lean4"), None)

    @cached_property
    def tactics_stripped(self) -> list[str]:
        return [strip_comments(block.content) for block in self.tactics]

    @cached_property
    def tactics_lines(self) -> list[list[str]]:
        return [code_lines(stripped) for stripped in self.tactics_stripped]

    @cached_property
    def lean_stripped(self) -> str:
        return strip_comments(self.lean.content) if self.lean else ""

    @cached_property
    def lean_lines(self) -> list[str]:
        return code_lines(self.lean_stripped)

    @cached_property
    def statement(self) -> StatementMatch | None:
        return find_statement(self.problem.statement, self.lean.content) if self.lean else None

    def finding(self, kind: str, offset: int, value: float | None, message: str) -> Finding:
        text = self.output.text
        line_start = text.rfind("\n", 0, offset) + 1
        return Finding(kind, text.count("\n", 0, offset) + 1, offset - line_start, value, message)


def _lengths(p: Parsed) -> Iterator[Finding]:
    t, end = p.thresholds, len(p.output.text)
    if p.truncated and t.reject_truncated:
        yield p.finding("truncated", end, None, "cut at the response limit")
    if t.max_characters is not None and end > t.max_characters:
        message = f"{end} characters, at most {t.max_characters} allowed"
        yield p.finding("too_long", t.max_characters, end, message)


def _think_tags(p: Parsed) -> Iterator[Finding]:
    o, by_template = p.output, p.thresholds.think_opened_by_template
    if o.thinking is None:
        if o.closes:
            yield p.finding("think_not_opened", o.closes[0], None, "</think> without <think>")
        else:
            yield p.finding("think_missing", 0, None, "no <think>…</think>")
    elif not any(offset >= o.thinking[0] for offset in o.closes):
        yield p.finding("think_unclosed", o.thinking[0], None, "<think> is never closed")
    opens = len(o.opens) + by_template
    if opens > 1 or len(o.closes) > 1:
        second = o.opens[1 - by_template :][:1] + o.closes[1:2]
        message = f"{opens} <think> and {len(o.closes)} </think>, one each allowed"
        if by_template and o.opens:
            message += "; the chat template has opened the first"
        yield p.finding("think_repeated", min(second), max(opens, len(o.closes)), message)
    if o.opens and not by_template and o.text[: o.opens[0]].strip():
        yield p.finding("text_before_think", 0, None, "text before <think>")


_LETTERS = re.compile(r"[^\W\d_]+")
# Beyond Latin, modifiers, Greek, phonetic letters, letter-like signs and mathematical alphabets.
_FOREIGN = re.compile("[^\\W\\d_\u0000-\u03ff\u1d00-\u24ff\U0001d400-\U0001d7ff]+")


def _thinking(p: Parsed) -> Iterator[Finding]:
    t = p.thresholds
    if p.output.thinking is None:
        return
    start = p.output.thinking[0]
    if t.min_thinking_words is not None:
        prose, position = [], start
        for block in p.output.thinking_blocks:
            prose.append(p.output.text[position : block.start])
            position = block.end
        prose.append(p.output.text[position : p.output.thinking[1]])
        words = sum(len(WORD.findall(part)) for part in prose)
        if words < t.min_thinking_words:
            message = f"{words} words outside code, at least {t.min_thinking_words} wanted"
            yield p.finding("thinking_too_short", start, words, message)
    if t.max_foreign_letters is not None and not p.thinking.isascii():
        letters = sum(map(len, _LETTERS.findall(p.thinking)))
        share = sum(map(len, _FOREIGN.findall(p.thinking))) / max(letters, 1)
        if share > t.max_foreign_letters:
            first = _FOREIGN.search(p.thinking)
            assert first is not None, "the share is above zero"
            message = f"{share:.0%} of the letters are neither Latin nor Greek"
            yield p.finding("thinking_foreign", start + first.start(), share, message)


def _repetition(p: Parsed) -> Iterator[Finding]:
    t = p.thresholds
    start = p.output.thinking[0] if p.output.thinking else 0
    lines = repeated_lines(p.thinking, t.significant_line_words, t.repeated_line_at)
    if lines:
        most = max(times for _, times in lines)
        message = f"{len(lines)} significant line(s) of the thinking repeated, {most} times at most"
        yield p.finding("repeated_line", start + lines[0][0], most, message)
    if t.max_repeated_ngrams is not None:
        share = repeated_ngram_share(p.thinking, t.ngram_words)
        if share > t.max_repeated_ngrams:
            message = f"{share:.0%} of the thinking's {t.ngram_words}-grams are repetitions"
            yield p.finding("repeated_ngrams", start, share, message)
    if t.loop_at is not None and p.truncated:
        length, copies = tail_loop(p.output.text)
        if copies >= t.loop_at:
            message = f"ends in {copies} copies of the same {length} word(s)"
            yield p.finding("loop", len(p.output.text), copies, message)


def _lean_block(p: Parsed) -> Iterator[Finding]:
    o, lean = p.output, p.lean
    in_thinking = [b for b in o.thinking_blocks if b.tag == "lean4"]
    if lean is None and not in_thinking:
        if other := next((b for b in o.answer_blocks if b.tag not in ("lean4", "tactics")), None):
            message = f"the answer's block is tagged {other.tag!r}, not 'lean4'"
            yield p.finding("lean_block_wrong_tag", other.start, None, message)
        else:
            yield p.finding("lean_block_missing", len(o.text), None, "no ```lean4 block")
    if in_thinking:
        message = "a ```lean4 block inside the thinking"
        yield p.finding("lean_block_in_thinking", in_thinking[0].start, len(in_thinking), message)
    if lean is None:
        return
    blocks = [b for b in o.answer_blocks if b.tag == "lean4"]
    if len(blocks) > 1:
        message = f"{len(blocks)} ```lean4 blocks, one allowed"
        yield p.finding("lean_block_repeated", blocks[1].start, len(blocks), message)
    if not lean.closed:
        yield p.finding("lean_block_unclosed", lean.start, None, "the ```lean4 block is not closed")
    if not p.lean_stripped.strip():
        yield p.finding("lean_block_empty", lean.start, None, "the ```lean4 block holds no code")
    before = o.text[o.answer_start : lean.start]
    if not p.thresholds.allow_text_before_lean and before.strip():
        offset = o.answer_start + len(before) - len(before.lstrip())
        yield p.finding("text_before_lean_block", offset, None, "text before the ```lean4 block")
    after = o.text[lean.end :]
    if after.strip():
        offset = lean.end + len(after) - len(after.lstrip())
        yield p.finding("text_after_lean_block", offset, None, "text after the ```lean4 block")


def _fences(p: Parsed) -> Iterator[Finding]:
    blocks = (*p.output.thinking_blocks, *p.output.answer_blocks)
    if left_open := [b for b in blocks if not b.closed and b is not p.lean]:
        message = "a fenced block is not closed"
        yield p.finding("fence_unclosed", left_open[0].start, len(left_open), message)
    if nested := [b.nested_at for b in blocks if b.nested_at is not None]:
        message = "a fence inside a fenced block, which it cannot open"
        yield p.finding("fence_nested", nested[0], len(nested), message)


def _tactics(p: Parsed) -> Iterator[Finding]:
    t, o = p.thresholds, p.output
    count = len(p.tactics)
    if count < t.min_tactics_blocks:
        offset = o.thinking[1] if o.thinking else 0
        message = f"{count} ```tactics block(s) in the thinking, at least {t.min_tactics_blocks} wanted"
        yield p.finding("tactics_blocks_too_few", offset, count, message)
    if late := [b for b in o.answer_blocks if b.tag == "tactics"]:
        message = "a ```tactics block outside the thinking"
        yield p.finding("tactics_block_in_answer", late[0].start, len(late), message)
    if p.lean is None:
        return
    limit = max(t.tactics_lines_floor, t.tactics_lines_share * len(p.lean_lines))
    for block, lines in zip(p.tactics, p.tactics_lines, strict=True):
        if len(lines) > limit:
            message = f"a ```tactics block of {len(lines)} lines, at most {limit:g} allowed"
            yield p.finding("tactics_block_too_long", block.start, len(lines), message)
            return


def comment_density(code: str, stripped: str) -> tuple[float, float]:
    """Comment lines per code line and comment characters per code character of one block or more.

    `stripped`: what `strip_comments` makes of `code`. A line with code on it is a code line; white
    space is no character; a denominator of 0 counts as 1.
    """
    lines = comment_lines = 0
    for before, after in zip(code.split("\n"), stripped.split("\n"), strict=True):
        if after.strip():
            lines += 1
        elif before.strip():
            comment_lines += 1
    code_count = len("".join(stripped.split()))
    comments = len("".join(code.split())) - code_count
    return comment_lines / max(lines, 1), comments / max(code_count, 1)


def _comments(p: Parsed) -> Iterator[Finding]:
    t = p.thresholds
    tactics = "\n".join(b.content for b in p.tactics), "\n".join(p.tactics_stripped)
    lean = p.lean.content if p.lean else "", p.lean_stripped
    for name, texts, blocks, max_lines, max_characters in (
        ("tactics", tactics, p.tactics, t.max_tactics_comment_lines, t.max_tactics_comment_characters),
        ("lean", lean, (p.lean,), t.max_lean_comment_lines, t.max_lean_comment_characters),
    ):
        if not blocks or blocks[0] is None or (max_lines is None and max_characters is None):
            continue
        per_line, per_character = comment_density(*texts)
        for unit, value, limit in (
            ("lines", per_line, max_lines),
            ("characters", per_character, max_characters),
        ):
            if limit is not None and value > limit:
                message = f"{value:.2f} comment {unit} per code {unit}, at most {limit:g} allowed"
                yield p.finding(f"{name}_comment_{unit}", blocks[0].start, value, message)


def _alignment(p: Parsed) -> Iterator[Finding]:
    t = p.thresholds
    if p.lean is None:
        return
    final = p.lean_lines
    if t.alignment_skips_statement:
        stripped = p.lean_stripped
        if p.statement is not None and p.statement.kept:
            stripped = stripped[: p.statement.start] + "\n" + stripped[p.statement.end :]
        header = set(code_lines(p.problem.header))
        final = [line for line in code_lines(stripped) if line not in header]
    score = alignment(
        p.tactics_lines,
        final,
        t.alignment,
        counts_duplicates=t.alignment_counts_duplicates,
        subcode_lines=t.subcode_lines,
    )
    if score < t.min_alignment:
        message = f"tactics and final code agree by {score:.2f}, at least {t.min_alignment:g} wanted"
        yield p.finding("alignment_too_low", p.lean.start, score, message)


def _code(p: Parsed) -> Iterator[Finding]:
    lean = p.lean
    if lean is None:
        return
    if p.statement is None:
        message = f"the statement of {p.problem.name} does not stand in the lean4 block"
        yield p.finding("statement_missing", lean.start, None, message)
    elif not p.statement.kept:
        message = f"the statement of {p.problem.name} was changed"
        yield p.finding("statement_changed", _offset_in(p, lean, p.statement.end), None, message)
    if "axiom" not in lean.content and "instance" not in lean.content:
        return
    words = list(code_words(mask_quoted(lean.content)))
    pairs = pairwise(words)
    axioms = [offset for word, offset in words if word == "axiom"]
    local = [offset for word, offset in words if word == "local_instance"]
    local += [offset for (a, offset), (b, _) in pairs if (a, b) == ("local", "instance")]
    if axioms:
        yield p.finding("axiom", _offset_in(p, lean, axioms[0]), len(axioms), "declares an axiom")
    if local:
        message = "declares a local instance"
        yield p.finding("local_instance", _offset_in(p, lean, min(local)), len(local), message)


def _offset_in(p: Parsed, block: FencedBlock, offset: int) -> int:
    """Offset in the completion of an offset in the block's content, whose indentation is gone."""
    lines_before = block.content.count("\n", 0, offset)
    column = offset - (block.content.rfind("\n", 0, offset) + 1)
    raw_lines = p.output.text[block.content_start : block.end].split("\n")
    lines = block.content.split("\n")
    start = block.content_start + sum(len(line) + 1 for line in raw_lines[:lines_before])
    return start + len(raw_lines[lines_before]) - len(lines[lines_before]) + column


# In the order of `report.KINDS`.
CHECKS: tuple[Callable[[Parsed], Iterator[Finding]], ...] = (
    _lengths,
    _think_tags,
    _thinking,
    _repetition,
    _lean_block,
    _fences,
    _tactics,
    _comments,
    _alignment,
    _code,
)


def parse(completion: str, problem: Problem, thresholds: FormatThresholds, *, truncated: bool) -> Parsed:
    """Take a completion apart for the functions in `CHECKS`."""
    by_template = thresholds.think_opened_by_template
    output = parse_output(completion, think_opened_by_template=by_template)
    return Parsed(output, problem, thresholds, truncated)


def check_format(
    completion: str, problem: Problem, thresholds: FormatThresholds, *, truncated: bool
) -> FormatReport:
    """Run every check on `completion`; `truncated` says that the response limit cut it.

    No completion raises; time is linear in its length. ValueError if the problem's statement
    declares nothing.
    """
    statement_tokens(problem.statement)
    p = parse(completion, problem, thresholds, truncated=truncated)
    return FormatReport(
        findings=tuple(finding for check in CHECKS for finding in check(p)),
        lean_code=p.lean.content if p.lean else None,
        lean_line=p.output.text.count("\n", 0, p.lean.content_start) + 1 if p.lean else None,
        tactics_blocks=tuple(block.content for block in p.tactics),
        thinking=p.thinking if p.output.thinking else None,
    )


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Soft penalty in [-1, 0] on a completion's length in tokens (DAPO, arXiv 2503.14476, eq. 13).

    0 up to `limit - buffer`, -1 from `limit` on, linear in between: an ablation of the hard rule
    that a truncated completion earns nothing.
    """
    return max(-1.0, min(0.0, (limit - buffer - length) / buffer))
