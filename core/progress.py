"""What a person sees of work under way: a bar on a terminal, else a line every 30 seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HEARTBEAT_S = 30.0


@contextlib.contextmanager
def progress(
    name: str, total: int | None, say: Callable[[str], None] | None, console: Console | None
) -> Iterator[Callable[[int], None]]:
    """Show a bar on `console`, or else a line by `say` every 30 seconds. Yields what advances it."""
    start, done, finished = time.perf_counter(), 0, threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=console is None)
    task = bar.add_task(name, total=total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar.advance(task, count)

    def heartbeat(say: Callable[[str], None]) -> None:
        while not finished.wait(HEARTBEAT_S):
            seconds = time.perf_counter() - start
            say(f"  … {name}: {done}{f' of {total}' if total else ''}, {seconds:.0f} s")

    if console is None and say is not None:
        threading.Thread(target=heartbeat, args=(say,), daemon=True).start()
    try:
        with bar:
            yield advance
    finally:
        finished.set()
