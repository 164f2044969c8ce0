"""A table of completions, good, bad and hostile, each with the findings it must have, by hand.

A case is a name, a completion, the expected findings in order (`kind`, or `kind@line:column`, or
`kind=value`), and what differs from the `kimina` thresholds.
"""

# ruff: noqa: E501 (a case a row)
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STATEMENT = "theorem t (p q : Prop) (h : p ∧ q) : q ∧ p := by sorry"
HEADER = "import Mathlib\nopen Nat\n"
LEAN = """theorem t (p q : Prop) (h : p ∧ q) : q ∧ p := by
  have h1 : p := h.left
  have h2 : q := h.right
  exact ⟨h2, h1⟩"""
T1 = "```tactics\nhave h1 : p := h.left\nhave h2 : q := h.right\n```"
T2 = "```tactics\nexact ⟨h2, h1⟩\n```"
THINK = f"We take h apart first.\n{T1}\nThen we join the parts.\n{T2}\n"


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    expected: str
    thresholds: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False


def output(
    think: str = THINK,
    lean: str = LEAN,
    *,
    before: str = "<think>\n",
    between: str = "</think>\n\n",
    opening: str = "```lean4\n",
    closing: str = "\n```",
    after: str = "",
) -> str:
    """Lines: 1 `<think>`, 2 to 10 thinking, 11 `</think>`, 13 the fence, 14 to 17 Lean, 18 the fence."""
    return before + think + between + opening + lean + closing + after


def lean(old: str, new: str) -> str:
    assert old in LEAN
    return output(lean=LEAN.replace(old, new))


def think(old: str, new: str) -> str:
    assert old in THINK
    return output(THINK.replace(old, new))


REPEATED = "we should now try to rewrite hypothesis alpha with beta gamma delta epsilon zeta eta theta\n"
SHORT = "we try again and again\n"
BY_TEMPLATE = {"think_opened_by_template": True}

GOOD = [
    Case("plain", output(), ""),
    Case("final newline", output(after="\n"), ""),
    Case("blank lines at the end", output(after="\n \n\t\n"), ""),
    Case("blank line before think", output(before="\n\n<think>"), ""),
    Case("no blank line after think", output(between="</think>\n"), ""),
    Case("fence right behind </think>", output(between="</think>"), ""),
    Case("</think> right behind a fence", output(THINK.rstrip("\n")), ""),
    Case("text before the block", output(between="</think>\nHere it is:\n"), ""),
    Case("Windows line ends", output().replace("\n", "\r\n"), ""),
    Case("fences of four", output(opening="````lean4\n", closing="\n````"), ""),
    Case("closing fence longer", output(closing="\n``````"), ""),
    Case("tildes", output(opening="~~~lean4\n", closing="\n~~~"), ""),
    Case("tildes around backticks", output(opening="~~~lean4\n", lean=LEAN + "\n-- ```", closing="\n~~~"), ""),
    Case("closing fence with blanks", output(closing="\n```  \t"), ""),
    Case("indented fence", output(opening="   ```lean4\n", closing="\n   ```"), ""),
    Case("info after the tag", output(opening="```lean4 title=x\n"), ""),
    Case("blank before the tag", output(opening="```  lean4\n"), ""),
    Case("three tactics blocks", think(T2, T2 + "\nor\n" + T2), ""),
    Case("plain block in the thinking", think(T2, T2 + "\n```\n1 + 1\n```"), ""),
    Case("lean block in the thinking", think(T2, T2 + "\n```lean\nexample\n```"), ""),
    Case("fenced word in a sentence", think("We take", "The ```lean4``` block: we take"), ""),
    Case("comments in Lean", lean("  exact", "  -- both\n  /- a /- b -/ c -/ exact"), ""),
    Case("doc comment before", output(lean="/-- A theorem. -/\n" + LEAN), ""),
    Case("helper lemma", output(lean="lemma a : True := trivial\n" + LEAN), "alignment_too_low=0.6"),
    Case("statement over lines", lean(" (h : p", "\n    (h :  -- both\n p"), "alignment_too_low"),
    Case("statement ends in by on its own line", lean(":= by", ":=\nby"), "alignment_too_low=0.6"),
    Case("term proof", lean("by\n", "\n"), ""),
    Case("axiomatic", lean("h2", "axiomatic"), "alignment_too_low=0.25"),
    Case("axiom in a comment", lean("exact", "/- no axiom -/ exact"), ""),
    Case("axiom in a line comment", lean("h1⟩", "h1⟩ -- axiom"), ""),
    Case("axiom in a string", lean("exact", 'trace "axiom"; exact'), "alignment_too_low=0.5"),
    Case("axiom as a part of a name", lean("exact", "exact x.axiom;"), "alignment_too_low=0.5"),
    Case("axiom in guillemets", lean("exact", "exact «axiom»;"), "alignment_too_low=0.5"),
    Case("instance in a comment", lean("exact", "/- local instance -/ exact"), ""),
    Case("sorry in a comment", lean("exact", "/- sorry -/ exact"), ""),
    Case("other white space in code", lean("h1 : p := h.left", "h1  :  p  :=  h.left "), ""),
    Case("tab in code", lean("  have h1", "\thave h1"), ""),
    Case("repeated five times", think("We take", REPEATED * 5 + "We take"), ""),
    Case("short line repeated", think("We take", SHORT * 50 + "We take"), ""),
    Case("opened by the template", output(before="\n"), "", BY_TEMPLATE),
    Case("opened by the template, no line end", output(before=""), "", BY_TEMPLATE),
    Case("truncated allowed", output(), "", {"reject_truncated": False}, truncated=True),
    Case("open think-like words", think("We take", "I <thinking> that <Think> or < think> we take"), ""),
    Case("long floor", think(T2, "```tactics\na\nb\nc\nd\nexact ⟨h2, h1⟩\n```"), ""),
    Case("comments do not count as lines", think(T2, "```tactics\n-- x\n--y\n-- z\n-- u\n-- v\n-- w\nexact ⟨h2, h1⟩\n```"), ""),
]  # fmt: skip

NO_THINKING = "tactics_blocks_too_few=0 alignment_too_low=0"

THINK_FAULTS = [
    Case("empty", "", "think_missing@1:0 lean_block_missing@1:0 tactics_blocks_too_few=0"),
    Case("white space", " \n\n", "think_missing@1:0 lean_block_missing@3:0 tactics_blocks_too_few"),
    Case("prose only", "I cannot.", "think_missing lean_block_missing@1:9 tactics_blocks_too_few"),
    Case("no tags", output(before="", between="\n"), "think_missing@1:0 tactics_blocks_too_few=0 "
         "tactics_block_in_answer=2 alignment_too_low=0"),
    Case("no <think>", output(before=""), f"think_not_opened@10:0 {NO_THINKING}"),
    Case("no </think>", output(between="\n"), "think_unclosed@1:7 lean_block_in_thinking=1"),
    Case("unclosed and cut", "<think>\nWe take", "think_unclosed@1:7 lean_block_missing tactics_blocks_too_few"),
    Case("two thinks", output(before="<think>a</think>\n<think>"), "think_repeated@2:0=2 tactics_blocks_too_few=0 "
         "tactics_block_in_answer alignment_too_low"),
    Case("second think at the end", output(after="\n<think>more</think>"), "think_repeated text_after_lean_block"),
    Case("nested think", output(before="<think><think>\n"), "think_repeated@1:7=2"),
    Case("closed twice", output(between="</think></think>\n"), "think_repeated@11:8=2"),
    Case("closed in a tactics block", think("have h1", "</think> have h1"), "think_repeated=2 fence_unclosed@3:0 "
         "fence_nested@8:0 tactics_blocks_too_few=1 alignment_too_low=0"),
    Case("tag in a Lean string", lean("exact", 'trace "</think>"; exact'), "think_repeated@17:9 alignment_too_low"),
    Case("tag in a Lean comment", lean("exact", "/- <think> -/ exact"), "think_repeated@17:5=2"),
    Case("tags the wrong way round", output(before="</think>", between="<think>\n"),
         "think_unclosed@10:7 text_before_think lean_block_in_thinking=1 tactics_blocks_too_few=0"),
    Case("text before", output(before="Sure!\n<think>\n"), "text_before_think@1:0"),
    Case("template and model both open", output(), "think_repeated@1:0=2", BY_TEMPLATE),
    Case("template opens, nothing closes", "We take", "think_unclosed@1:0 lean_block_missing tactics_blocks_too_few",
         BY_TEMPLATE),
    Case("template opens, closed twice", output(before="", between="</think>\n</think>\n"), "think_repeated@11:0=2",
         BY_TEMPLATE),
    Case("capital tags", output(before="<Think>\n", between="</Think>\n"), "think_missing tactics_blocks_too_few "
         "tactics_block_in_answer alignment_too_low"),
    Case("blank inside the tag", output(before="< think>\n"), f"think_not_opened {NO_THINKING}"),
    Case("other tag", output(before="<thinking>\n", between="</thinking>\n"), "think_missing tactics_blocks_too_few "
         "tactics_block_in_answer alignment_too_low"),
    Case("empty thinking", output("", before="<think>"), f"thinking_too_short@1:7=0 {NO_THINKING}",
         {"min_thinking_words": 1}),
    Case("code is no thought", output(), "thinking_too_short=10", {"min_thinking_words": 11}),
    Case("enough thought", output(), "", {"min_thinking_words": 10}),
    Case("Chinese thinking", think("We take h apart first.", "我们先把这个假设拆开"), "thinking_foreign@2:0",
         {"max_foreign_letters": 0.1}),
    Case("Greek is at home", think("We take h apart first.", "Let α, β and γ be ℝ, 𝔸"), "",
         {"max_foreign_letters": 0.0}),
    Case("one Chinese word", think("We take", "We 取"), "", {"max_foreign_letters": 0.05}),
    Case("Cyrillic", think("We take h apart first.", "Разберём гипотезу"), "thinking_foreign",
         {"max_foreign_letters": 0.05}),
]  # fmt: skip

REPETITION = [
    Case("six times", think("We take", REPEATED * 6 + "We take"), "repeated_line@7:0=6"),
    Case("seven times", think("We take", REPEATED * 7 + "We take"), "repeated_line@7:0=7"),
    Case("six times, indented", think("We take", ("  " + REPEATED) * 6 + "We take"), "repeated_line@7:2=6"),
    Case("six times, not in a row", think("We take", (REPEATED + "ok\n") * 6 + "We take"), "repeated_line@12:0=6"),
    Case("two lines six times", think("We take", (REPEATED + "and " + REPEATED) * 6 + "We take"),
         "repeated_line@12:0=6"),
    Case("in the Lean block", lean("  exact", "  -- a b c d e f g h j k l m\n" * 6 + "  exact"), ""),
    Case("in a tactics block", think("exact ⟨", "have hx : a + b + c + d = e + f + g + h + m := k\n" * 6 + "exact ⟨"),
         "repeated_line tactics_block_too_long@8:0=7"),
    Case("nine words", think("We take", "a1 b1 c1 d1 e1 f1 g1 h1 i1\n" * 6 + "We take"), ""),
    Case("ten words", think("We take", "a1 b1 c1 d1 e1 f1 g1 h1 i1 j1\n" * 6 + "We take"), "repeated_line"),
    Case("stop words do not count", think("We take", "a1 b1 c1 d1 e1 f1 g1 h1 i1 so that we have it\n" * 6 + "We take"), ""),
    Case("lower threshold", think("We take", "alpha beta gamma delta\n" * 4 + "We take"), "repeated_line=4",
         {"significant_line_words": 4, "repeated_line_at": 4}),
    Case("n-grams", think("We take", "x y z " * 50 + "We take"), "repeated_ngrams@1:7", {"max_repeated_ngrams": 0.5}),
    Case("few n-grams", output(), "", {"max_repeated_ngrams": 0.5}),
    Case("truncated", output()[:-4], "truncated@17:16 lean_block_unclosed@13:0", truncated=True),
    Case("truncated in the thinking", "<think>\nWe", "truncated@2:2 think_unclosed lean_block_missing "
         "tactics_blocks_too_few", truncated=True),
    Case("truncated though whole", output(), "truncated@18:3", truncated=True),
    Case("loop", "<think>\n" + "Wait, no. " * 20, "truncated think_unclosed loop=20 lean_block_missing "
         "tactics_blocks_too_few", {"loop_at": 4}, truncated=True),
    Case("loop of one sign", "<think>\n" + "(" * 50, "truncated think_unclosed loop=50 lean_block_missing "
         "tactics_blocks_too_few", {"loop_at": 4}, truncated=True),
    Case("no loop", "<think>\nno no no yes", "truncated think_unclosed lean_block_missing tactics_blocks_too_few",
         {"loop_at": 4}, truncated=True),
    Case("too many characters", output(), "too_long@1:7", {"max_characters": 7}),
]  # fmt: skip

BLOCK_FAULTS = [
    Case("no block", output(opening="", closing=""), "lean_block_missing@16:16"),
    Case("untagged", output(opening="```\n"), "lean_block_wrong_tag@13:0"),
    Case("tag lean", output(opening="```lean\n"), "lean_block_wrong_tag@13:0"),
    Case("tag Lean4", output(opening="```Lean4\n"), "lean_block_wrong_tag@13:0"),
    Case("tag lean4:", output(opening="```lean4:\n"), "lean_block_wrong_tag@13:0"),
    Case("tag python", output(opening="```python\n"), "lean_block_wrong_tag@13:0"),
    Case("tag on the next line", output(opening="```\nlean4\n"), "lean_block_wrong_tag@13:0"),
    Case("tactics as the answer", output(opening="```tactics\n"), "lean_block_missing tactics_block_in_answer@13:0=1"),
    Case("two fence marks", output(opening="``lean4\n", closing="\n``"), "lean_block_missing"),
    Case("indented by four", output(opening="    ```lean4\n", closing="\n    ```"), "lean_block_missing"),
    Case("backtick in the info", output(opening="```lean4 `x`\n", closing=""), "lean_block_missing"),
    Case("fence in the middle of a line", output(opening="Proof: ```lean4\n", closing=""), "lean_block_missing"),
    Case("code on the fence's line", output(opening="```lean4 "), "statement_missing@13:0"),
    Case("two blocks", output(after="\n```lean4\nx\n```"), "lean_block_repeated@19:0=2 text_after_lean_block@19:0"),
    Case("same block twice", output(after=f"\n\n```lean4\n{LEAN}\n```\n"), "lean_block_repeated@20:0=2 "
         "text_after_lean_block@20:0"),
    Case("block in the thinking too", think(T2, T2 + "\n```lean4\nx\n```"), "lean_block_in_thinking@11:0=1"),
    Case("block only in the thinking", output(THINK + f"```lean4\n{LEAN}\n```\n", "", opening="", closing=""),
         "lean_block_in_thinking@11:0=1"),
    Case("unclosed", output(closing=""), "lean_block_unclosed@13:0"),
    Case("closed too short", output(opening="````lean4\n"), "lean_block_unclosed@13:0 alignment_too_low=0.6"),
    Case("closed with tildes", output(closing="\n~~~"), "lean_block_unclosed@13:0 alignment_too_low=0.6"),
    Case("closed with a tag", output(closing="\n```lean4"), "lean_block_unclosed fence_nested@18:0=1 alignment_too_low"),
    Case("closed behind code", output(closing=" ```"), "lean_block_unclosed alignment_too_low=0.5"),
    Case("only the fence", output(lean="", opening="```lean4", closing=""), "lean_block_unclosed lean_block_empty "
         "alignment_too_low=0 statement_missing"),
    Case("empty block", output(lean="", closing="```"), "lean_block_empty@13:0 alignment_too_low=0 statement_missing"),
    Case("comments only", output(lean="-- theorem t\n/- x -/"), "lean_block_empty alignment_too_low statement_missing"),
    Case("text after", output(after="\nThis proves it."), "text_after_lean_block@19:0"),
    Case("text after, blank line between", output(after="\n\n  Done."), "text_after_lean_block@20:2"),
    Case("fence after", output(after="\n```"), "text_after_lean_block@19:0 fence_unclosed@19:0=1"),
    Case("text before forbidden", output(between="</think>\nSo:\n"), "text_before_lean_block@12:0",
         {"allow_text_before_lean": False}),
    Case("fence inside a Lean comment", lean("  exact", "/-\n```\n-/\n  exact"), "text_after_lean_block@19:0 "
         "fence_unclosed@21:0=1 alignment_too_low"),
    Case("fence inside a Lean string", lean("exact", 'trace "\n```\n"; exact'), "text_after_lean_block@19:0 "
         "fence_unclosed@20:0 alignment_too_low=0.5"),
    Case("lean4 fence inside a block", lean("  exact", "```lean4\n  exact"), "fence_nested@17:0=1 alignment_too_low=0.6"),
    Case("tactics fence left open", think("h.right\n```", "h.right"), "fence_nested@7:0=1 tactics_blocks_too_few=1"),
    Case("last tactics fence left open", think("h1⟩\n```", "h1⟩"), "fence_unclosed@8:0=1"),
    Case("other fence left open in the thinking", output(THINK + "```\n"), "fence_unclosed@11:0=1"),
    Case("carriage returns only", output().replace("\n", "\r"), "lean_block_missing tactics_blocks_too_few"),
]  # fmt: skip

TACTICS_FAULTS = [
    Case("none", output("We take h apart.\n"), NO_THINKING),
    Case("one", think(T2, ""), "tactics_blocks_too_few@9:0=1 alignment_too_low=0.5"),
    Case("one suffices", think(T2, ""), "alignment_too_low=0.5", {"min_tactics_blocks": 1}),
    Case("wrong tag", think("```tactics\nexact", "```lean\nexact"), "tactics_blocks_too_few=1 alignment_too_low=0.5"),
    Case("tag tactic", think("```tactics\nexact", "```tactic\nexact"), "tactics_blocks_too_few=1 alignment_too_low"),
    Case("tag Tactics", think("```tactics\nexact", "```Tactics\nexact"), "tactics_blocks_too_few=1 alignment_too_low"),
    Case("outside the thinking", output(between="</think>\n" + T1 + "\n"), "tactics_block_in_answer@12:0=1"),
    Case("six lines", think("exact ⟨h2", "a\nb\nc\nd\ne\nexact ⟨h2"), "tactics_block_too_long@8:0=6"),
    Case("share of a longer proof", output(THINK.replace("exact", "a\nb\nc\nd\ne\nexact"), LEAN.replace(
         "  exact", "  a\n  b\n  c\n  d\n  e\n  exact")), ""),
    Case("whole proof as tactics", output(f"{T2}\n```tactics\n{LEAN}\n```\n"), "", {"tactics_lines_floor": 4}),
    Case("limit by share", output(f"{T2}\n```tactics\n{LEAN}\n```\n"), "tactics_block_too_long@5:0=4",
         {"tactics_lines_floor": 1}),
    Case("comments in tactics", think("have h1", "-- one\n-- two\n-- three\nhave h1"), "tactics_comment_lines@3:0=1",
         {"max_tactics_comment_lines": 0.9}),
    Case("comments in tactics allowed", think("have h1", "-- one\n-- two\n-- three\nhave h1"), "",
         {"max_tactics_comment_lines": 1.0}),
    Case("comment behind code is no line", think("exact ⟨h2, h1⟩", "exact ⟨h2, h1⟩ -- so"), "",
         {"max_tactics_comment_lines": 0.0}),
    Case("comment characters in tactics", think("exact ⟨h2, h1⟩", "exact ⟨h2, h1⟩ -- " + "so" * 50),
         "tactics_comment_characters@3:0", {"max_tactics_comment_characters": 1.0}),
    Case("comment lines in Lean", lean("  exact", "  -- a\n  -- b\n  /- c\n  d -/\n  exact"), "lean_comment_lines@13:0=1",
         {"max_lean_comment_lines": 0.5}),
    Case("comment characters in Lean", lean("exact", "exact /- " + "x" * 200 + " -/"), "lean_comment_characters@13:0",
         {"max_lean_comment_characters": 1.0}),
    Case("no comments, limits of zero", output(), "", {"max_lean_comment_lines": 0.0, "max_lean_comment_characters": 0.0,
         "max_tactics_comment_lines": 0.0, "max_tactics_comment_characters": 0.0}),
    Case("comments in an empty block", think("exact ⟨h2, h1⟩", "-- only words"), "tactics_comment_lines=0.5 "
         "alignment_too_low=0.5", {"max_tactics_comment_lines": 0.3}),
]  # fmt: skip

ALIGNMENT = [
    Case("another proof", lean("h.left", "h.1"), "alignment_too_low@13:0=0.5"),
    Case("at the threshold", lean("h.left", "h.1"), "", {"min_alignment": 0.5}),
    Case("iou", output(), "", {"alignment": "iou", "min_alignment": 0.75}),
    Case("iou with a stray line", think("exact", "skip\nexact"), "alignment_too_low=0.6",
         {"alignment": "iou"}),
    Case("subcode", think("exact", "skip\nexact"), "alignment_too_low=0.5", {"alignment": "subcode"}),
    Case("subcode whole", output(), "", {"alignment": "subcode", "min_alignment": 1.0}),
    Case("subcode is more than the share", think("exact", "a\nb\nexact"), "", {
         "alignment": "subcode", "min_alignment": 1.0, "subcode_lines": 0.33}),
    Case("subcode at the share", think("exact", "a\nexact"), "alignment_too_low=0.5", {
         "alignment": "subcode", "subcode_lines": 0.5}),
    Case("duplicates as sets", lean("  exact", "  have h1 : p := h.left\n  exact"), ""),
    Case("duplicates weighed", lean("  exact", "  have h1 : p := h.left\n  exact"), "alignment_too_low=0.6",
         {"alignment_counts_duplicates": True}),
    Case("statement skipped", think(T2, T2), "", {"alignment_skips_statement": True, "min_alignment": 1.0}),
    Case("header skipped", output(lean=HEADER + LEAN), "", {"alignment_skips_statement": True, "min_alignment": 1.0}),
    Case("header counts", output(lean=HEADER + LEAN), "alignment_too_low=0.5"),
    Case("white space does not matter", think("h1 : p := h.left", "h1  : p :=  h.left  "), ""),
    Case("comments do not matter", think("h1 : p := h.left", "h1 : p := /- so -/ h.left -- yes"), ""),
    Case("commented out does not count", think("have h1", "-- have h1"), "alignment_too_low=0.5"),
    Case("one-line proof", output(lean=LEAN.split(" by")[0] + " ⟨h.2, h.1⟩"), "alignment_too_low=0"),
]  # fmt: skip

STATEMENT_FAULTS = [
    Case("no statement", output(lean="example : True := trivial"), "alignment_too_low=0 statement_missing@13:0"),
    Case("renamed", lean("theorem t ", "theorem t' "), "statement_missing"),
    Case("lemma", lean("theorem t ", "lemma t "), "statement_missing"),
    Case("def", lean("theorem t ", "def t "), "statement_missing"),
    Case("weakened", lean("q ∧ p :=", "q ∨ p :="), "statement_changed@14:39"),
    Case("extra hypothesis", lean("(h : p ∧ q)", "(h : p ∧ q) (f : False)"), "statement_changed@14:35"),
    Case("without hypothesis", lean(" (h : p ∧ q)", ""), "statement_changed@14:23"),
    Case("True", lean(" (p q : Prop) (h : p ∧ q) : q ∧ p", " : True"), "statement_changed@14:10"),
    Case("longer conclusion", lean("q ∧ p :=", "q ∧ p ∨ True :="), "statement_changed@14:43"),
    Case("shorter conclusion", lean("q ∧ p :=", "q :="), "statement_changed@14:39"),
    Case("change on the second line", lean(" (h : p ∧ q)", "\n  (h : p ∨ q)"), "alignment_too_low statement_changed@15:9"),
    Case("in a line comment", output(lean="-- " + LEAN.replace("\n", "\n  ")), "statement_missing"),
    Case("in a block comment", output(lean="/- " + LEAN + " -/\nexact"), "alignment_too_low=0 statement_missing"),
    Case("in an unclosed comment", output(lean="x /- " + LEAN), "alignment_too_low=0 statement_missing"),
    Case("in a nested comment", output(lean="/- /- -/ " + LEAN + "\n-/ x"), "alignment_too_low statement_missing"),
    Case("in a doc comment", output(lean="/-- -- -/\n" + LEAN), "lean_block_empty alignment_too_low statement_missing"),
    Case("in a string", output(lean='def s := "' + LEAN + '"'), "alignment_too_low=0.5 statement_missing"),
    Case("in a raw string", output(lean='def s := r#"' + LEAN + '"#'), "alignment_too_low=0.5 statement_missing"),
    Case("in guillemets", output(lean="def «" + LEAN + "»"), "alignment_too_low=0.5 statement_missing"),
    Case("comment closed inside", output(lean="/- x -/ " + LEAN), ""),
    Case("string closed before", output(lean='#eval "x"\n' + LEAN), "alignment_too_low=0.6"),
    Case("after a changed one", output(lean="theorem t : True := trivial\n" + LEAN), "alignment_too_low=0.6"),
    Case("part of a longer name", lean("theorem t ", "mytheorem t "), "statement_missing"),
    Case("name with a dot", lean("theorem t ", "theorem t.t "), "statement_missing"),
    Case("look-alike letter", lean("(p q", "(р q"), "statement_changed@14:11"),
    Case("look-alike name", lean("theorem t ", "theorem т "), "statement_missing"),
    Case("no-break space", lean("theorem t ", "theorem\u00a0t "), "statement_missing"),
    Case("zero width space", lean("(p q", "(p\u200b q"), "statement_changed@14:12"),
    Case("ascii and", lean("p ∧ q", "p /\\ q"), "statement_changed@14:30"),
    Case("private", lean("theorem t ", "private theorem t "), ""),
    Case("comment between", lean("theorem t ", "theorem /- x -/ t "), ""),
    Case("axiom", output(lean="axiom a : False\n" + LEAN), "alignment_too_low=0.6 axiom@14:0=1"),
    Case("two axioms", output(lean=LEAN + "\n\n axiom a : q\naxiom b : p"), "alignment_too_low=0.5 axiom@19:1=2"),
    Case("axiom after a number", lean("exact", "exact 1axiom"), "alignment_too_low axiom@17:9=1"),
    Case("axiom in an interpolation", lean("exact", 'exact s!"{axiom}"'), "alignment_too_low axiom@17:12"),
    Case("local instance", output(lean="local instance : Inhabited Nat := ⟨0⟩\n" + LEAN), "alignment_too_low "
         "local_instance@14:0=1"),
    Case("attribute local instance", output(lean="attribute [local instance] foo\n" + LEAN), "alignment_too_low "
         "local_instance@14:11"),
    Case("local_instance", lean("exact", "local_instance\n  exact"), "alignment_too_low local_instance@17:2"),
    Case("local on one line, instance on the next", output(lean="local -- x\n instance : a := b\n" + LEAN),
         "alignment_too_low=0.5 local_instance@14:0"),
    Case("instance alone", output(lean="instance : a := b\n" + LEAN), "alignment_too_low=0.6"),
    Case("axiom in an indented block", output(lean="  axiom a : q\n" + LEAN, opening="  ```lean4\n"),
         "alignment_too_low=0.6 axiom@14:2"),
]  # fmt: skip

HOSTILE = [
    Case("null bytes", "\0" * 50, "think_missing lean_block_missing tactics_blocks_too_few"),
    Case("lone surrogate", think("We take", "\ud800 We take"), ""),
    Case("surrogate in Lean", lean("exact", "\udfff exact"), "alignment_too_low=0.5"),
    Case("line separator in Lean", lean("  exact", "\u2028  exact"), ""),
    Case("bidi marks in the statement", lean("(h : p", "(h : \u202ep"), "statement_changed"),
    Case("byte order mark", "\ufeff" + output(), "text_before_think@1:0"),
    Case("closing fence as first line", output(before="```\n<think>\n"), "text_before_think"),
    Case("a thousand fences", output(THINK + "```\n" * 1000), ""),
    Case("odd number of fences", output(THINK + "```\n" * 1001), "fence_unclosed@1011:0=1"),
    Case("a thousand nested comments", lean("exact", "/- " * 1000 + "x" + "-/" * 1000 + " exact"), ""),
    Case("comment never closed", lean("exact", "/- " * 1001 + "-/" * 1000 + " exact"), "alignment_too_low"),
    Case("string never closed", lean("exact ⟨", 'exact " ⟨'), "alignment_too_low=0.5"),
    Case("thousand thinks", "<think>" * 1000, "think_unclosed@1:7 think_repeated@1:7=1000 lean_block_missing "
         "tactics_blocks_too_few"),
    Case("thousand closings", "</think>" * 1000, "think_not_opened@1:0 think_repeated@1:8=1000 lean_block_missing "
         "tactics_blocks_too_few"),
    Case("tactics blocks of nothing", think(T2, T2 + "\n```tactics\n```" * 100), ""),
    Case("statement a hundred times", output(lean=(LEAN + "\n") * 100), ""),
    Case("echoed prompt", output(before="# Problem: x\n# Formal Statement:\n```lean4\n" + LEAN + "\n```\n<think>"),
         "text_before_think"),
]  # fmt: skip

CASES = [
    *GOOD, *THINK_FAULTS, *REPETITION, *BLOCK_FAULTS, *TACTICS_FAULTS, *ALIGNMENT, *STATEMENT_FAULTS, *HOSTILE,
]  # fmt: skip
