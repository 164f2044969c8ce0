"""Throughput against kimina_client's own `check` on one server: python benchmarks/kimina.py [SNIPPETS] [S].

The snippets are right and wrong proofs with some that never end and some that kill Lean. Prints snippets a
second of both, their ratio, and how many snippets each judged wrongly or not at all. S is the timeout. Ours
does more for its verdicts: it asks again about every timeout and crash, and for a known theorem behind it.
Proofs of milliseconds wait for the server's polling (0.1 s), so twice as many are in flight as there
are REPLs.
"""

# ruff: noqa: E402  (the stack of the tests is found by its path)

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from kimina_cases import CRASH, ENDLESS, ENDLESS_PROOF, PROOF, SWAP, WRONG
from kimina_stack import make_environment, serving

from core.lean.kimina import AsyncKiminaClient, KiminaLean, Snippet
from core.lean.verdict import LeanCheck, Verdict

TIMEOUT_S = int((sys.argv[1:] + ["200", "10"][len(sys.argv) - 1 :])[1])
REPLS = 2
TURNS = 2
KINDS = {
    "right": (SWAP, PROOF, Verdict.PROVED, "valid"),
    "wrong": (SWAP, WRONG, Verdict.FAILED, "lean_error"),
    "endless": (ENDLESS, ENDLESS_PROOF, Verdict.TIMEOUT, "timeout_error"),
    "deadly": (SWAP, CRASH, Verdict.CRASHED, "server_error"),
}


def kinds(count: int) -> list[str]:
    """One endless and one deadly snippet in 40."""
    return [
        "endless" if i % 40 == 7 else "deadly" if i % 40 == 27 else ("right", "wrong")[i % 2]
        for i in range(count)
    ]


def ours(url: str, count: int) -> tuple[float, Counter[str]]:
    """Snippets a second, and how often each kind got another verdict than its own."""
    verifier = KiminaLean(
        servers=[url], slots=2 * REPLS, timeout_s=TIMEOUT_S, max_output_bytes=400_000, cache_entries=0
    )
    try:
        start = time.monotonic()
        futures = []
        for i, kind in enumerate(kinds(count)):
            problem, text, expected, _ = KINDS[kind]
            futures.append((kind, expected, verifier.submit(LeanCheck(str(i), problem, f"{text}\n-- {i}"))))
        wrong = Counter(
            f"{k}: {f.result().verdict.value}" for k, e, f in futures if f.result().verdict is not e
        )
        return count / (time.monotonic() - start), wrong
    finally:
        verifier.close()


async def theirs(url: str, count: int) -> tuple[float, Counter[str]]:
    """The same of `AsyncKiminaClient.check` with its own batches of 8, five at once."""
    client = AsyncKiminaClient(api_url=url)
    snippets = [
        Snippet(id=str(i), code=f"import Mathlib\n{KINDS[kind][1]}\n-- {i}")
        for i, kind in enumerate(kinds(count))
    ]
    start = time.monotonic()
    answer = await client.check(snippets, timeout=TIMEOUT_S, show_progress=False)
    seconds = time.monotonic() - start
    found = {result.id: result.analyze().status.value for result in answer.results}
    await client.close()
    wrong = Counter(
        f"{kind}: {found[str(i)]}" for i, kind in enumerate(kinds(count)) if found[str(i)] != KINDS[kind][3]
    )
    return count / seconds, wrong


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    logging.getLogger("kimina-client").setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(make_environment(), Path(folder) / "s", repls=REPLS) as server,
    ):
        ours(server.url, 6)  # the REPLs are up
        rates: list[tuple[float, float]] = []
        for turn in range(TURNS):  # in turn, so that both meet the same machine
            mine, my_wrong = ours(server.url, count)
            client, client_wrong = asyncio.run(theirs(server.url, count))
            rates.append((mine, client))
            print(f"turn {turn + 1}: KiminaLean {mine:.2f} snippets/s, otherwise judged: {dict(my_wrong)}")
            print(
                f"        check      {client:.2f} snippets/s, otherwise judged: {dict(client_wrong)}",
                flush=True,
            )
    mine, client = (TURNS / sum(1 / rate for rate in column) for column in zip(*rates, strict=True))
    print(
        f"KiminaLean {mine:.2f}, AsyncKiminaClient.check {client:.2f} snippets/s: ratio {mine / client:.2f}"
    )


if __name__ == "__main__":
    main()
