"""Writes the tables of core/lean/README.md from the cases of lean_cheats.py: python tests/cheat_table.py.

What stops a cheat is asked of the scan and of the embedded Lean each time; test_lean_readme.py holds the
README to it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lean_cheats import CHEATS, FALSE, OPEN

from core.lean.embedded import EmbeddedLean
from core.lean.scan import RULES, WORD_RULES
from core.lean.verdict import LeanCheck, LeanResult

README = Path(__file__).parents[1] / "core" / "lean" / "README.md"
WIDTH = 78


def cell(text: str) -> str:
    """One line of Markdown code, cut to a readable width."""
    text = re.sub(r"[^\x20-\x7e⟨⟩→∀Α-ωа-я∧«»⊢…]", lambda m: f"‹{ord(m[0]):X}›", text.replace("\n", " ⏎ "))
    text = text.replace("‹23CE›", "⏎")
    text = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
    return "`` " + text.replace("|", "\\|") + " ``" if "`" in text else "`" + text.replace("|", "\\|") + "`"


def ask_lean() -> list[LeanResult]:
    """What becomes of every cheat, scan and Lean together."""
    lean = EmbeddedLean(
        workers=2, batch_size=16, timeout_s=200.0, memory_mb=512, max_output_bytes=400_000, cache_entries=0
    )
    try:
        return [future.result() for future in [lean.submit(LeanCheck(n, FALSE, c)) for n, _, c in CHEATS]]
    finally:
        lean.close()


def cheat_table(results: list[LeanResult]) -> str:
    lines = ["| cheat | text | verdict | stopped by |", "|---|---|---|---|"]
    for (name, rule, code), result in zip(CHEATS, results, strict=True):
        first = next((m.text for m in result.messages if m.severity == "error"), result.rule or "?")
        by = f"scan, `{rule}`" if rule else "Lean: " + cell(first)
        text = cell(code.replace(OPEN, "…")) if code else "(empty)"
        lines.append(f"| {name} | {text} | {result.verdict.value} | {by} |")
    return "\n".join(lines)


def rule_table() -> str:
    words = {rule.name: sorted(rule.words) for rule in WORD_RULES}
    lines = ["| rule | reason | words | cheats |", "|---|---|---|---|"]
    for name, reason in RULES.items():
        shown = " ".join(f"`{word}`" for word in words.get(name, []))
        count = sum(rule == name for _, rule, _ in CHEATS)
        lines.append(f"| `{name}` | {reason} | {shown} | {count} |")
    return "\n".join(lines)


def with_tables(readme: str, results: list[LeanResult]) -> str:
    """The README with its tables made anew."""
    for name, table in (("rules", rule_table()), ("cheats", cheat_table(results))):
        marks = rf"(<!-- {name}: tests/cheat_table.py -->\n).*?(<!-- end -->)"
        readme, found = re.subn(marks, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", readme, count=1, flags=re.S)
        assert found, f"{README} has no place for the table of {name}"
    return readme


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    README.write_text(with_tables(README.read_text(encoding="utf-8"), ask_lean()), encoding="utf-8")
