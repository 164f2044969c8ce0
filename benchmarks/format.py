"""Times the format checks on realistic outputs of 8,000 tokens, and each check by itself.

`python benchmarks/format.py [PROOFS.jsonl]`: the file's proofs (column `code`) become outputs as the recipe
wants them: thinking in prose and tactics blocks until the output has 8,000 tokens (3.2 characters each), then
the whole proof. Without a file one proof is made up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from core.format_checks import PRESETS, FormatThresholds, check_format
from core.format_checks import lexer as lean_lexer
from core.format_checks.checks import CHECKS, parse
from core.format_checks.lexer import tokenize
from core.problems import Problem

CHARACTERS = int(8_000 * 3.2)
MADE_UP = (
    "import Mathlib\n\n"
    "theorem made_up (x y : ℝ) (h₀ : x + y = 10) (h₁ : x * y = 21) : x ^ 2 + y ^ 2 = 58 := by\n"
    + "".join(f"  have h{i} : x + y + {i} = {10 + i} := by linarith -- step {i}\n" for i in range(60))
    + "  nlinarith [sq_nonneg (x - y)]"
)


def realistic_output(code: str) -> tuple[str, Problem]:
    """An output of about `CHARACTERS` characters whose answer is `code`, and its problem."""
    start = code.index("theorem")
    statement = code[start : code.index(":= by", start) + 5]
    lines = [line for line in code[start + len(statement) :].split("\n") if line.strip()]
    thinking = []
    step = size = 0
    while size < CHARACTERS - len(code):
        some = lines[step * 4 % max(len(lines), 1) :][:4]
        thinking.append(
            f"Step {step}: next we look at what follows from the hypotheses, since {statement[:40]}… asks "
            f"for it; the idea of step {step} is to rewrite both sides and to compare them term by term.\n"
            "```tactics\n" + "\n".join(some) + "\n```\n"
        )
        size += len(thinking[-1])
        step += 1
    text = f"<think>\n{''.join(thinking)}</think>\n\n```lean4\n{code}\n```"
    return text, Problem(statement.split()[1], statement, code[:start], "", "")


def seconds_each(work: Callable[[Any], object], items: list[Any]) -> float:
    """CPU seconds of `work` per item, the best of three rounds, with cold caches."""
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for item in items:
            lean_lexer._quoted_spans.cache_clear()
            work(item)
        rounds.append((time.process_time() - start) / len(items))
    return min(rounds)


def split(outputs: list[tuple[str, Problem]], thresholds: FormatThresholds) -> dict[str, float]:
    """CPU seconds of parsing and of each check, in the order in which they run and share their work."""
    spent = {"blocks": 0.0} | {check.__name__.strip("_"): 0.0 for check in CHECKS}
    for text, problem in outputs:
        lean_lexer._quoted_spans.cache_clear()
        start = time.process_time_ns()
        parsed = parse(text, problem, thresholds, truncated=False)
        spent["blocks"] += time.process_time_ns() - start
        for check in CHECKS:
            start = time.process_time_ns()
            list(check(parsed))
            spent[check.__name__.strip("_")] += time.process_time_ns() - start
    return {name: nanoseconds / 1e9 / len(outputs) for name, nanoseconds in spent.items()}


def main() -> None:
    if len(sys.argv) > 1:
        rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
        codes = [row["code"] for row in rows if "theorem" in row["code"] and ":= by" in row["code"]]
    else:
        codes = [MADE_UP] * 20
    outputs = [realistic_output(code) for code in codes]
    characters = sum(len(text) for text, _ in outputs) / len(outputs)
    print(f"{len(outputs)} outputs, {characters:,.0f} characters each; CPU time on one core")
    for name in ("kimina", "strict"):
        thresholds = PRESETS[name]
        each = seconds_each(lambda o, t=thresholds: check_format(o[0], o[1], t, truncated=False), outputs)
        print(f"\npreset {name}: {1 / each:,.0f} outputs a second ({1e3 * each:.2f} ms each)")
        for part, seconds in split(outputs, thresholds).items():
            print(f"  {part:12} {1e3 * seconds:6.2f} ms  {seconds / each:4.0%}")
    each = seconds_each(tokenize, codes)
    size = sum(map(len, codes)) / len(codes)
    print(f"\ntokenize: {1e-6 * size / each:.1f} million characters a second")


if __name__ == "__main__":
    main()
