"""Shows that a verifier's memory stays flat and nothing outlives it: python benchmarks/flatness.py [CHECKS].

Sends distinct texts (two thirds proofs, a third wrong, refused ones in each quarter, and one on which Lean
dies) through the embedded Lean's pool and prints the memory of the trainer's side and of Lean's processes at
the start and after each quarter; then the processes and open files that are left.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from verify import make_checks

from core.lean.embedded import EmbeddedLean
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

WARM_UP = 500  # checks before the first figure: caches fill, allocators settle
WINDOW = 256  # checks in flight, so that the queue itself does not grow
TOWER = (
    "def tower (n : Nat) : Nat :=\n  match n with\n  | Nat.zero => 2\n"
    "  | Nat.succ n => Nat.mul (tower n) (tower n)\n"
)
HUNGRY = Problem("t", f"{TOWER}theorem t : Eq (tower 40) 3 :=", "", "", "benchmark")


@dataclass(frozen=True)
class Figures:
    """Memory in MB and open files after `checks` checks."""

    checks: int
    trainer_mb: float
    lean_mb: float
    files: int

    def __str__(self) -> str:
        return (
            f"{self.checks:>6} checks: this process {self.trainer_mb:.1f} MB, Lean's processes between "
            f"checks {self.lean_mb:.1f} MB, {self.files} open files"
        )


def figures(checks: int) -> Figures:
    """Measured while no check runs. A child that Lean's process forks shares its pages and is not counted."""
    here = psutil.Process()
    lean = sum(p.memory_info().rss for p in here.children()) / 2**20
    return Figures(checks, here.memory_info().rss / 2**20, lean, here.num_fds())


def refused_checks(mark: str) -> list[LeanCheck]:
    """Texts that are refused."""
    return [LeanCheck(str(i), HUNGRY, f"{HUNGRY.statement} sorry -- {mark} {i}") for i in range(10)]


def feed(verifier: EmbeddedLean, checks: list[LeanCheck], verdicts: Counter[Verdict]) -> None:
    """All `checks`, at most WINDOW in flight."""
    flying: deque[Future[LeanResult]] = deque()
    for check in checks:
        if len(flying) == WINDOW:
            verdicts[flying.popleft().result().verdict] += 1
        flying.append(verifier.submit(check))
    verdicts.update(future.result().verdict for future in flying)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", type=int, nargs="?", default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    files = psutil.Process().num_fds()
    verifier = EmbeddedLean(
        workers=arguments.workers,
        batch_size=32,
        timeout_s=60.0,
        memory_mb=256,
        max_output_bytes=4_000_000,
        cache_entries=1000,  # far fewer than the texts: what is evicted must be freed
    )
    verdicts: Counter[Verdict] = Counter()
    children: set[int] = set()
    dying = [LeanCheck("hungry", HUNGRY, f"{HUNGRY.statement} rfl")]  # asks for more memory than there is
    stops = [arguments.checks * quarter // 4 for quarter in (1, 2, 3, 4)]
    feed(verifier, make_checks(WARM_UP, "warm"), Counter())
    print(first := figures(0), flush=True)
    start, done = time.monotonic(), 0
    for stop in stops:
        mark = f"to {stop}"
        feed(verifier, make_checks(stop - done, mark) + refused_checks(mark) + dying, verdicts)
        dying = []
        children |= {child.pid for child in psutil.Process().children(recursive=True)}
        done = stop
        print(last := figures(done), flush=True)
    seconds = time.monotonic() - start
    verifier.close()
    left = [pid for pid in children if psutil.pid_exists(pid)]
    left += [child.pid for child in psutil.Process().children(recursive=True)]
    counts = ", ".join(f"{n} {verdict.value}" for verdict, n in verdicts.most_common())
    print(f"{sum(verdicts.values()) / seconds:.0f} checks/s on {arguments.workers} workers: {counts}")
    growth = (last.trainer_mb - first.trainer_mb, last.lean_mb - first.lean_mb)
    print(f"growth: this process {growth[0]:+.1f} MB, Lean's processes {growth[1]:+.1f} MB")
    print(f"left behind: {len(left)} processes, {psutil.Process().num_fds() - files} open files")


if __name__ == "__main__":
    main()
