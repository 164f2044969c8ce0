"""The trainer's end of a Lean process: starts it, hands it files to check, never waits on a dead one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.lean.library import WORKER_FILE, LeanLibrary

ANSWER_SLACK_S = 10.0  # a process that is silent this long beyond a check's timeout is stopped or dead
START_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 600.0  # for a REPL to read Mathlib from a cold disk


class LeanProcessError(Exception):
    """The process died, fell silent or could not start: the infrastructure's fault, not the proof's."""


class LeanProcess:
    """A process that answers each line with a line. Not thread-safe: it belongs to the thread that uses it,
    and dies with it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise LeanProcessError(f"Lean's process does not start: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        greeting = self._exchange(b"", START_TIMEOUT_S)
        self.no_network = bool(greeting["no_network"])
        self.confined = bool(greeting.get("confined"))

    def _exchange(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        """Write `request` and read one line, without ever waiting on a stopped process."""
        deadline, answer = time.monotonic() + timeout_s, bytearray()
        try:
            while not answer.endswith(b"\n"):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise LeanProcessError(f"Lean's process gave no answer in {timeout_s:.0f} s")
                readable, writable, _ = select.select(
                    [self._stdout], [self._stdin] if request else [], [], remaining
                )
                if writable:
                    request = request[os.write(self._stdin, request[: 1 << 16]) :]
                if readable:
                    data = os.read(self._stdout, 1 << 20)
                    if not data:
                        raise LeanProcessError("Lean's process died")
                    answer += data
        except OSError as error:
            raise LeanProcessError(f"Lean's process died: {error}") from error
        return json.loads(answer)

    def close(self) -> None:
        """Kill it; the kernel kills its child with it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Zygote(LeanProcess):
    """The embedded Lean's (zygote.py)."""

    def __init__(self, library: LeanLibrary, memory_mb: int, max_output_bytes: int) -> None:
        command = [sys.executable, "-I", "-S", str(WORKER_FILE), "serve", str(library.shared)]
        environment = {
            "LEAN_PATH": str(library.compiled),
            "MIMALLOC_ARENA_RESERVE": "64MiB",  # address space is limited, so none may be set aside
            "MALLOC_ARENA_MAX": "1",
        }
        super().__init__([*command, str(os.getpid()), str(memory_mb), str(max_output_bytes)], environment)

    def run(self, text: str, timeout_s: float) -> dict[str, Any]:
        """Check one file; see `as_answer` in zygote.py. Raises LeanProcessError."""
        return self._exchange(_line(text=text, timeout_s=timeout_s), timeout_s + ANSWER_SLACK_S)


class Jail(LeanProcess):
    """The one around a Lean of this machine (jail.py); its folders are deleted when it is closed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings`: command, environment, readable (paths Lean may read), repl (whether the command is
        one), recycle_after, memory_mb, max_output_bytes."""
        self._scratch = tempfile.TemporaryDirectory(prefix="lean-drgrpo-", ignore_cleanup_errors=True)
        self._start_s = IMPORT_TIMEOUT_S if settings["repl"] else 0.0
        more = {"parent": os.getpid(), "scratch": self._scratch.name, "start_timeout_s": IMPORT_TIMEOUT_S}
        root = str(Path(__file__).parents[2])
        command = [sys.executable, "-S", "-P", "-m", "core.lean.jail", json.dumps(settings | more)]
        super().__init__(command, {"PYTHONPATH": root})

    def run(self, imports: str, text: str, timeout_s: float) -> dict[str, Any]:
        """Check one text; see `as_answer` in zygote.py. Raises LeanProcessError."""
        request = _line(imports=imports, text=text, timeout_s=timeout_s)
        return self._exchange(request, timeout_s + self._start_s + ANSWER_SLACK_S)

    def close(self) -> None:
        super().close()
        self._scratch.cleanup()


def _line(**request: Any) -> bytes:
    return json.dumps(request).encode() + b"\n"
