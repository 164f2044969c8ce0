"""Verdicts under faults: python benchmarks/faults.py [SNIPPETS] [FAULT …].

Sends the same snippets to the real Kimina server over the embedded Lean, once without faults and once with
each fault injected (by a proxy, by killing REPLs, by restarting the server in mid-batch), and prints for each
how many requests were broken, how many verdicts are wrong (must be none) and how many are censored.
"""

# ruff: noqa: E402  (the stack of the tests is found by its path)

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from faulty_proxy import FAULTS, FaultyProxy
from kimina_cases import mixed
from kimina_stack import KiminaServer, make_environment, serving

from core.lean import kimina
from core.lean.kimina import KiminaLean
from core.lean.verdict import LeanResult, Verdict

TIMEOUT_S = 60.0
HANG_S = 8.0  # the client's patience in the run with hanging requests


def run(url: str, count: int, mark: str, break_at: Callable[[int], None]) -> tuple[list[LeanResult], float]:
    """All results of one run with a cache of its own, and its seconds; `break_at` sees how many there are."""
    verifier = KiminaLean(
        servers=[url], slots=2, timeout_s=TIMEOUT_S, max_output_bytes=400_000, cache_entries=0
    )
    try:
        start = time.monotonic()
        futures = [verifier.submit(check) for check in mixed(count, mark)]
        while not all(future.done() for future in futures):
            break_at(sum(future.done() for future in futures))
            time.sleep(0.02)
        seconds = time.monotonic() - start
        assert sum(verifier.counts[v.value] for v in Verdict) == count, "one verdict a snippet"
        return [future.result() for future in futures], seconds
    finally:
        verifier.close()


class Sabotage:
    """Kills a REPL every 5 answers, or the whole server once, after a quarter of them."""

    def __init__(self, server: KiminaServer, how: str, count: int) -> None:
        self.server, self.how, self.count = server, how, count
        self.hits, self.seen = 0, 0

    def __call__(self, answered: int) -> None:
        if self.how == "restart" and not self.hits and answered > self.count // 4:
            self.hits += 1
            self.server.stop()
            self.server.start()
        if self.how == "killed REPLs" and answered >= self.seen + 5:
            for repl in self.server.repls()[:1]:
                with suppress(psutil.NoSuchProcess):
                    repl.kill()
                self.hits, self.seen = self.hits + 1, answered


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    faults = sys.argv[2:] or [*FAULTS, "killed REPLs", "restart"]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(make_environment(), Path(folder) / "s", repls=2) as server,
    ):
        good, seconds = run(server.url, count, "none", lambda answered: None)
        verdicts = ", ".join(f"{sum(r.verdict is v for r in good)} {v.value}" for v in Verdict)
        print(f"{'none':>12}: {seconds:6.1f} s; {verdicts}", flush=True)
        patience = kimina.SILENCE_S
        for fault in faults:
            proxy, sabotage = FaultyProxy(server.port), Sabotage(server, fault, count)
            if fault in FAULTS:
                proxy.fault, proxy.every = fault, 20 if fault == "hang" else 5
            kimina.SILENCE_S = HANG_S - 2 * TIMEOUT_S if fault == "hang" else patience
            results, seconds = run(proxy.url, count, fault, sabotage)
            proxy.close()
            censored = sum(r.verdict is Verdict.UNKNOWN for r in results)
            pairs = zip(results, good, strict=True)
            wrong = sum(r.verdict not in (g.verdict, Verdict.UNKNOWN) for r, g in pairs)
            broken = proxy.hits + sabotage.hits
            print(
                f"{fault:>12}: {seconds:6.1f} s, {broken} broken, {wrong} wrong, {censored} censored",
                flush=True,
            )


if __name__ == "__main__":
    main()
