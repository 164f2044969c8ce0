"""Verdicts under faults: python benchmarks/faults.py [SNIPPETS] [FAULT …].

Sends the same snippets to the real Kimina server over the embedded Lean, once without faults and once with
each fault injected (by a proxy, by killing REPLs, by restarting the server in mid-batch), and prints for each
how many requests were broken, how many verdicts are wrong (must be none) and how many are censored.
"""

# ruff: noqa: E402  (the stack of the tests is found by its path)

from __future__ import annotations

import sys
import tempfile
import threading
import time
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


def run(url: str, count: int, mark: str) -> tuple[list[LeanResult], float]:
    """All results of one run with a cache of its own, and its seconds."""
    verifier = KiminaLean(
        servers=[url], slots=2, timeout_s=TIMEOUT_S, max_output_bytes=400_000, cache_entries=0
    )
    try:
        start = time.monotonic()
        results = [future.result() for future in map(verifier.submit, mixed(count, mark))]
        seconds = time.monotonic() - start
        assert sum(verifier.counts[v.value] for v in Verdict) == count, "one verdict a snippet"
        return results, seconds
    finally:
        verifier.close()


def sabotage(server: KiminaServer, how: str, over: threading.Event, hits: list[int]) -> None:
    """Kill a REPL every 0.7 s, or the whole server once."""
    if how == "restart":
        over.wait(3.0)
        server.stop()
        server.start()
        hits.append(1)
        return
    while not over.wait(0.7):
        for repl in server.repls()[:1]:
            with suppress(psutil.NoSuchProcess):
                repl.kill()
                hits.append(1)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    faults = sys.argv[2:] or [*FAULTS, "killed REPLs", "restart"]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(make_environment(), Path(folder) / "s", repls=2) as server,
    ):
        good, seconds = run(server.url, count, "none")
        print(
            f"{'none':>12}: {seconds:6.1f} s",
            *(f"{v.value} {sum(r.verdict is v for r in good)}" for v in Verdict),
        )
        patience = kimina.SILENCE_S
        for fault in faults:
            proxy, hits = FaultyProxy(server.port), []
            over = threading.Event()
            saboteur = threading.Thread(target=sabotage, args=(server, fault, over, hits))
            if fault in FAULTS:
                proxy.fault, proxy.every = fault, 20 if fault == "hang" else 5
                kimina.SILENCE_S = HANG_S - 2 * TIMEOUT_S if fault == "hang" else patience
            else:
                saboteur.start()
            results, seconds = run(proxy.url, count, fault)
            over.set()
            if fault not in FAULTS:
                saboteur.join()
            proxy.close()
            censored = sum(r.verdict is Verdict.UNKNOWN for r in results)
            pairs = zip(results, good, strict=True)
            wrong = sum(r.verdict not in (g.verdict, Verdict.UNKNOWN) for r, g in pairs)
            broken = proxy.hits + len(hits)
            print(
                f"{fault:>12}: {seconds:6.1f} s, {broken} broken, {wrong} wrong, {censored} censored",
                flush=True,
            )


if __name__ == "__main__":
    main()
