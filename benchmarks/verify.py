"""Measures what the embedded Lean can check a second: python benchmarks/verify.py [CHECKS] [WORKERS].

For proofs of the size that the tiny experiment samples (two thirds right, a third wrong), prints checks a
second in full batches, one at a time, and from the cache; and the processor time that one check takes.
"""

# ruff: noqa: E501
from __future__ import annotations

import resource
import sys
import time

from core.lean.embedded import EmbeddedLean
from core.lean.verdict import LeanCheck, Verdict
from core.problems import Problem

SETTINGS = {"batch_size": 32, "timeout_s": 60.0, "memory_mb": 1024, "max_output_bytes": 4_000_000}
CASES = [
    (
        "theorem t (p q r : Prop) (h : And p (And q r)) : And (And p q) r :=",
        "  have hp : p := h.left\n  have hq : q := h.right.left\n  have hr : r := h.right.{}\n  ⟨⟨hp, hq⟩, hr⟩",
        ("right", "right", "left"),
    ),
    (
        "theorem t (n : Nat) : Eq (Nat.add 0 n) n :=",
        "  match n with\n  | 0 => rfl\n  | Nat.succ n =>\n    have ih : Eq (Nat.add 0 n) n := t n\n    congrArg Nat.succ {}",
        ("ih", "(t n)", "n"),
    ),
    (
        "theorem t (p q : Prop) : Iff (Or p q) (Or q p) :=",
        "  ⟨fun h => h.elim Or.inr Or.{}, fun h => match h with\n    | .inl hq => .inr hq\n    | .inr hp => .inl hp⟩",
        ("inl", "inl", "inr"),
    ),
]


def make_checks(count: int, mark: str) -> list[LeanCheck]:
    """Distinct texts (by a comment), so that no answer comes from the cache."""
    checks = []
    for i in range(count):
        statement, proof, variants = CASES[i % len(CASES)]
        body = proof.format(variants[i // len(CASES) % 3])
        problem = Problem("t", statement, "", "", "benchmark")
        checks.append(LeanCheck(str(i), problem, f"{statement} -- {mark} {i}\n{body}"))
    return checks


def rate(verifier: EmbeddedLean, checks: list[LeanCheck]) -> float:
    """Checks a second; every verdict is the expected one."""
    start = time.monotonic()
    futures = [verifier.submit(check) for check in checks]
    proved = sum(future.result().verdict is Verdict.PROVED for future in futures)
    seconds = time.monotonic() - start
    assert proved == sum(i // len(CASES) % 3 < 2 for i in range(len(checks))), proved
    return len(checks) / seconds


def main() -> None:
    count, workers = (int(a) for a in (sys.argv[1:] + ["960", "2"][len(sys.argv) - 1 :])[:2])
    verifier = EmbeddedLean(workers=workers, cache_entries=count, **SETTINGS)
    rate(verifier, make_checks(8, "warm"))
    checks = make_checks(count, "batch")
    batched = rate(verifier, checks)
    cached = rate(verifier, checks)
    verifier.close()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    alone = EmbeddedLean(workers=workers, cache_entries=count, **{**SETTINGS, "batch_size": 1})
    rate(alone, make_checks(8, "warm"))
    single = rate(alone, make_checks(count // 8, "single"))
    alone.close()
    milliseconds = 1000 * (spent.ru_utime + spent.ru_stime) / (count + 8)
    print(f"{workers} workers, batches of {SETTINGS['batch_size']}: {batched:.0f} checks/s")
    print(f"{workers} workers, one check a file: {single:.0f} checks/s ({batched / single:.1f} times slower)")
    print(f"from the cache: {cached:.0f} checks/s")
    print(f"processor time: {milliseconds:.1f} ms a check in batches, start-up included")


if __name__ == "__main__":
    main()
