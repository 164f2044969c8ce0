"""Mutates outputs at random and checks each: `python tests/format_fuzz.py COUNT [SEED]`."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from format_cases import CASES, HEADER, LEAN, STATEMENT

from core.format_checks import KINDS, PRESETS, check_format
from core.problems import Problem

PROBLEM = Problem("t", STATEMENT, HEADER, "", "test")
TEXTS = [case.text for case in CASES if len(case.text) < 4_000]
PIECES = [
    *(
        "<think>",
        "</think>",
        "```",
        "```tactics\n",
        "```lean4\n",
        "````",
        "~~~",
        "\n",
        "\r\n",
        "\r",
        " ",
        "    ",
    ),
    *(
        "/-",
        "-/",
        "--",
        "/--",
        '"',
        "\\",
        's!"{',
        "}",
        "{",
        "'",
        "«",
        "»",
        'r#"',
        "\t",
        "\0",
        "\ud800",
        "\udc00",
    ),
    *(
        "\u2028",
        "\ufeff",
        "𝔸",
        "漢字",
        "theorem t",
        "axiom",
        "local instance",
        "sorry",
        ":= by",
        "1.",
        "1e",
        "`x",
    ),
    *(STATEMENT, LEAN, "é" * 40),
    "we try it again and again with the same lemma alpha beta gamma delta epsilon zeta eta theta\n",
]


def mutated(rng: random.Random) -> str:
    """An output of the table, cut, spliced, repeated or sown with marks in one to six places."""
    text = rng.choice(TEXTS)
    for _ in range(rng.randint(1, 6)):
        a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:a] + rng.choice(PIECES) + text[a:]
        elif kind == 1:
            text = text[:a] + rng.choice(PIECES) + text[b:]
        elif kind == 2:
            text = text[:a] + text[b:]
        elif kind == 3:
            text = text[:b] + text[a:b] * rng.randint(0, 3) + text[b:]
        elif kind == 4:
            other = rng.choice(TEXTS)
            text = text[:a] + other[rng.randint(0, len(other)) :]
        else:
            text = text[:a] + chr(rng.randint(0, 0x10FFFF)) + text[a + 1 :]
    return text[:8_000]


def fuzz(count: int, seed: int) -> Counter[str]:
    """Check `count` mutated outputs; how often each finding came. Whatever is raised passes through."""
    rng = random.Random(seed)
    presets = list(PRESETS.values())
    kinds: Counter[str] = Counter()
    for _ in range(count):
        text = mutated(rng)
        try:
            report = check_format(text, PROBLEM, rng.choice(presets), truncated=rng.random() < 0.1)
        except BaseException:
            print(f"seed {seed}: {text!r}", file=sys.stderr)
            raise
        found = [finding.kind for finding in report.findings]
        assert found == sorted(set(found), key=KINDS.index), (found, text)
        lines = text.replace("\r\n", "\n").split("\n")
        for f in report.findings:
            assert 1 <= f.line <= len(lines), (f, text)
            assert 0 <= f.column <= len(lines[f.line - 1]), (f, text)
        kinds.update(found or ["passed"])
    return kinds


if __name__ == "__main__":
    number, first_seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.process_time()
    counts = fuzz(number, first_seed)
    print(f"{number} mutated outputs, seed {first_seed}: nothing raised, {time.process_time() - start:.0f} s")
    for kind in ("passed", *KINDS):
        print(f"{counts[kind]:>9}  {kind}")
