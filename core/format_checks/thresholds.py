"""The format checks' thresholds: one value for every choice, and the three published sets of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.errors import UserError


@dataclass(frozen=True)
class FormatThresholds:
    """What a well-formed completion is. An experiment's config.yaml spells every value out.

    "Words" are runs of letters, digits and `_`. A limit of null switches its check off; the checks
    without a limit (blocks, statement, axioms) cannot be switched off.
    """

    think_opened_by_template: bool  # the chat template has written `<think>` before the completion
    allow_text_before_lean: bool  # words between `</think>` and the lean4 block
    reject_truncated: bool  # a completion cut at the response limit is malformed
    max_characters: int | None  # of a completion
    significant_line_words: int  # a thinking line counts from so many words on, stop words aside
    repeated_line_at: int  # a significant line that occurs so often is a repetition
    ngram_words: int  # words of an n-gram of the thinking
    max_repeated_ngrams: float | None  # share of n-grams that occurred before
    loop_at: int | None  # a truncated completion that ends in so many copies of one piece is a loop
    min_tactics_blocks: int
    tactics_lines_floor: int  # a tactics block may have so many lines, comments aside, in any case
    tactics_lines_share: float  # … and this share of the lean4 block's lines
    max_tactics_comment_lines: float | None  # comment lines per code line, in all tactics blocks
    max_tactics_comment_characters: float | None  # comment characters per code character
    max_lean_comment_lines: float | None  # the same for the lean4 block
    max_lean_comment_characters: float | None
    alignment: str  # score of tactics blocks against the lean4 block: "iof", "iou" or "subcode"
    min_alignment: float
    alignment_counts_duplicates: bool  # lines as multisets, not sets
    alignment_skips_statement: bool  # only lines behind header and statement have to be in tactics
    subcode_lines: float  # "subcode": share of a block's lines that makes it part of the code
    min_thinking_words: int | None  # outside fenced blocks
    max_foreign_letters: float | None  # share of the thinking's letters beyond Latin and Greek

    def __post_init__(self) -> None:
        if self.alignment not in ("iof", "iou", "subcode"):
            raise UserError(f"format.alignment={self.alignment!r}: must be 'iof', 'iou' or 'subcode'")


_KIMINA = FormatThresholds(
    think_opened_by_template=False,
    allow_text_before_lean=True,
    reject_truncated=True,
    max_characters=None,
    significant_line_words=10,
    repeated_line_at=6,
    ngram_words=20,
    max_repeated_ngrams=None,
    loop_at=None,
    min_tactics_blocks=2,
    tactics_lines_floor=5,
    tactics_lines_share=0.95,
    max_tactics_comment_lines=None,
    max_tactics_comment_characters=None,
    max_lean_comment_lines=None,
    max_lean_comment_characters=None,
    alignment="iof",
    min_alignment=0.7,
    alignment_counts_duplicates=False,
    alignment_skips_statement=False,
    subcode_lines=0.6,
    min_thinking_words=None,
    max_foreign_letters=None,
)

PRESETS: dict[str, FormatThresholds] = {
    # The published values; what the recipe leaves off is off.
    "kimina": _KIMINA,
    # Every check on.
    "strict": replace(
        _KIMINA,
        allow_text_before_lean=False,
        max_characters=200_000,
        max_repeated_ngrams=0.5,
        loop_at=4,
        max_tactics_comment_lines=0.5,
        max_tactics_comment_characters=1.0,
        max_lean_comment_lines=0.5,
        max_lean_comment_characters=1.0,
        min_thinking_words=20,
        max_foreign_letters=0.05,
    ),
    # For completions of 60 to 250 tokens, whose proofs have one to six lines: one tactics block
    # will do, shorter lines count as significant, and the statement, which is a quarter of such a
    # proof, need not stand in a tactics block.
    "tiny": replace(
        _KIMINA,
        significant_line_words=4,
        repeated_line_at=4,
        loop_at=4,
        min_tactics_blocks=1,
        alignment_skips_statement=True,
    ),
}
