"""The trainer's end of a zygote: starts the process, hands it files to check, never waits on a dead one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from core.lean.library import WORKER_FILE, LeanLibrary

ANSWER_SLACK_S = 10.0  # a zygote that is silent this long beyond a check's timeout is stopped or dead
START_TIMEOUT_S = 60.0


class LeanProcessError(Exception):
    """The zygote died, fell silent or could not start: the infrastructure's fault, not the proof's."""


class Zygote:
    """One zygote process. Not thread-safe: it belongs to the thread that uses it, and dies with it."""

    def __init__(self, library: LeanLibrary, memory_mb: int, max_output_bytes: int) -> None:
        command = [sys.executable, "-I", "-S", str(WORKER_FILE), "serve", str(library.shared)]
        command += [str(os.getpid()), str(memory_mb), str(max_output_bytes)]
        environment = {
            "LEAN_PATH": str(library.compiled),
            "MIMALLOC_ARENA_RESERVE": "64MiB",  # address space is limited, so none may be set aside
            "MALLOC_ARENA_MAX": "1",
        }
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
        self.no_network = bool(self._exchange(b"", START_TIMEOUT_S)["no_network"])

    def run(self, text: str, timeout_s: float) -> dict[str, Any]:
        """Check one file; see `check_file` in zygote.py for the answer. Raises LeanProcessError."""
        request = json.dumps({"text": text, "timeout_s": timeout_s}).encode() + b"\n"
        return self._exchange(request, timeout_s + ANSWER_SLACK_S)

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
