"""The local Lean as a verifier: a pool of jailed Lean processes over a Lake project on this machine.

Without a REPL each check is a process, `lake env lean --json`; with the community REPL each worker keeps one
that has read the imports and checks every text from there. What goes wrong is believed only when it repeats
and a known theorem with the same header passes right behind it, as in embedded.py.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.lean.assemble import (
    MAX_HEARTBEATS,
    Doubt,
    Reading,
    clamp_heartbeats,
    make_file,
    make_piece,
    own_text,
    read_messages,
)
from core.lean.embedded import IDLE_SHARE, MAX_TRIES, OUTSIDE_SIGNALS
from core.lean.intake import PROOF, TRUTH, Intake, Job, run_canaries
from core.lean.project import open_project
from core.lean.sandbox import Jail, LeanProcessError
from core.lean.snippets import OURS, split_header
from core.lean.verdict import LeanCheck, LeanResult, Verdict


class LocalLean:
    """A Verifier over the Lean of a Lake project, with whatever that project can import."""

    name = "local"

    def __init__(
        self,
        *,
        project: str | Path,
        repl: str | Path | None,
        workers: int,
        timeout_s: float,
        memory_mb: int,
        max_output_bytes: int,
        cache_entries: int,
        recycle_after: int,
    ) -> None:
        """`timeout_s` of wall clock a check (without a REPL the imports' time included) and `memory_mb` of
        memory a Lean; a REPL is replaced after `recycle_after` checks. Raises UserError where project,
        toolchain or REPL are not fit for use."""
        self._project = open_project(Path(project))
        self._timeout_s = timeout_s
        command = [
            str(self._project.lean),
            "--json",
            "-j1",
            *self._project.options,
            f"-M{memory_mb}",
            "--stdin",
        ]
        readable = self._project.readable
        if repl is not None:
            binary = Path(repl).expanduser().resolve()
            if not os.access(binary, os.X_OK) or binary.is_dir():
                raise UserError(
                    f"lean.repl={repl}: no executable there; build it with `lake build` in its folder"
                )
            command, readable = [str(binary)], [*readable, str(binary.parent)]
        self._settings: dict[str, Any] = {
            "command": command,
            "environment": self._project.environment | {"LEAN_NUM_THREADS": "1"},
            "readable": readable,
            "repl": repl is not None,
            "recycle_after": recycle_after,
            "memory_mb": memory_mb,
            "max_output_bytes": max_output_bytes,
        }
        self._intake = Intake(f"{self._project.version} {self._project.folder}", cache_entries)
        self.counts = self._intake.counts
        self._jobs: deque[Job] = deque()
        self._lock = threading.Condition()
        self._closed = False
        self._jails: list[Jail | None] = [None] * workers
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"lean-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    # --- the protocol ---------------------------------------------------------------------------

    def submit(self, check: LeanCheck) -> Future[LeanResult]:
        """Queue one check. Raises ValueError if the problem's own statement cannot be split, or if its
        header imports what the project does not have."""
        for module in split_header(check.problem.header)[0].split()[1::2]:
            if not self._project.has(module):
                places = ", ".join(map(str, self._project.libraries))
                raise UserError(
                    f"problem {check.problem.name} imports {module}, and {self._project.folder} has "
                    f"no compiled one (looked in {places}); require it in its lakefile and build it (for "
                    "Mathlib: `lake exe cache get`), or set lean.project to a project that has it"
                )
        job = Job(check, own_text(check.code, check.problem), self._intake.key(check))
        if not self._intake.answered(job):
            self._enqueue(job, first=False)
        return job.future

    def healthy(self) -> str | None:
        """Check the canaries before everything that waits; None, or what came out wrong."""
        header = "import Mathlib" if self._project.has("Mathlib") else ""
        sick = run_canaries(self.name, header, self._ask_canary)
        return sick[0] if sick else None

    def _ask_canary(self, check: LeanCheck) -> Future[LeanResult]:
        job = Job(check, check.code, "")
        self._enqueue(job, first=True)
        return job.future

    def close(self) -> None:
        """Kill every process; checks that wait or run come back UNKNOWN."""
        with self._lock:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            jails = [jail for jail in self._jails if jail is not None]
            self._lock.notify_all()
        for jail in jails:
            jail.process.kill()
        for job in waiting:
            self._intake.unknown(job, "the verifier was closed")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- the queue and its workers ----------------------------------------------------------------

    def _enqueue(self, job: Job, *, first: bool) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                (self._jobs.appendleft if first else self._jobs.append)(job)
                self._lock.notify()
        if closed:
            self._intake.unknown(job, "the verifier was closed")

    def _work(self, index: int) -> None:
        """A thread's life: it owns `self._jails[index]`."""
        while True:
            with self._lock:
                while not self._jobs and not self._closed:
                    self._lock.wait()
                if self._closed:
                    break
                job = self._jobs.popleft()
            self._settle(index, job)
        self._drop(index)

    def _drop(self, index: int) -> None:
        with self._lock:
            jail, self._jails[index] = self._jails[index], None
        if jail is not None:
            jail.close()

    def _read(self, index: int, job: Job) -> tuple[dict[str, Any], Reading]:
        """One run of Lean on this job. Raises LeanProcessError; the next run starts afresh."""
        imports, header = split_header(job.check.problem.header)
        piece = make_piece(job.check, job.code, secrets.token_hex(16), alone=True)
        file = make_file(OURS + clamp_heartbeats(header, MAX_HEARTBEATS), [piece], secrets.token_hex(16))
        try:
            jail = self._jails[index] or self._start(index)
            # on the file's first line, so that a line has the same number with and without a REPL
            answer = jail.run(imports.replace("\n", " "), file.text, self._timeout_s)
        except LeanProcessError:
            self._drop(index)
            raise
        messages, fault = parse_answer(answer["output"], repl=self._settings["repl"])
        (reading,) = read_messages(file, messages)
        return answer, replace(reading, verdict=None, doubt=Doubt.OURS, reason=fault) if fault else reading

    def _start(self, index: int) -> Jail:
        jail = Jail(self._settings)
        holes = [what for what, shut in (("network", jail.no_network), ("disk", jail.confined)) if not shut]
        if holes:  # said wherever the verifier is named, from the canaries on
            self.name = f"local (this machine cannot shut Lean out of the {' and the '.join(holes)})"
        with self._lock:
            self._jails[index], closed = jail, self._closed
        if closed:
            raise LeanProcessError("the verifier was closed")
        return jail

    def _settle(self, index: int, job: Job) -> None:
        """Check one job until its outcome is clear, or it has been tried too often."""
        before, reason = None, ""
        for _ in range(MAX_TRIES):
            try:
                answer, reading = self._read(index, job)
                verdict, reason = reading.verdict, reading.reason
                if verdict is None:
                    verdict, reason = trouble(answer, reading, self._timeout_s)
                    last, before = before, verdict
                    if verdict is None or verdict is not last:
                        continue
                    if not self._truth_passes(index, job.check.problem.header):
                        continue
            except LeanProcessError as error:
                before, reason = None, str(error)
                continue
            id, seconds = job.check.id, answer["seconds"]
            result = LeanResult(id, verdict, reading.messages, reason or None, seconds, raw=reading.raw)
            return self._intake.resolve(job, result)
        return self._intake.unknown(job, reason)

    def _truth_passes(self, index: int, header: str) -> bool:
        check = LeanCheck("canary", replace(TRUTH, header=header), PROOF)
        return self._read(index, Job(check, PROOF, ""))[1].verdict is Verdict.PROVED


def parse_answer(output: str, *, repl: bool) -> tuple[list[dict[str, Any]], str]:
    """Lean's messages, and the REPL's own complaint if it is one. What is cut off or not Lean's is left out:
    then the evidence is missing too."""
    messages: list[dict[str, Any]] = []
    for text in [output] if repl else output.split("\n"):
        try:
            said = json.loads(text)
        except json.JSONDecodeError:
            continue
        if repl and "message" in said:
            return [], f"the REPL says: {said['message']}"
        messages += said.get("messages", ()) if repl else [said]
    return messages, ""


def trouble(answer: dict[str, Any], reading: Reading, timeout_s: float) -> tuple[Verdict | None, str]:
    """What a run without evidence points to, if it happens twice: a verdict, or None for the
    infrastructure; and the reason."""
    why, died_of = answer["why"], answer["signal"]
    last_words = answer["errors"].strip().split("\n")[-1]
    if why == "timeout" and answer["cpu_seconds"] < IDLE_SHARE * answer["seconds"]:
        return None, "Lean stood still: it was stopped or starved"
    if why == "timeout" or died_of == signal.SIGXCPU:
        return Verdict.TIMEOUT, f"no answer in {timeout_s:g} s"
    if why == "start":
        return None, f"the REPL cannot read the imports: {(answer['output'] or last_words).strip()[:500]}"
    if why == "forged":
        return None, "the REPL answered before it was asked"
    if why:
        return Verdict.CRASHED, f"more {why} than allowed"
    if died_of in OUTSIDE_SIGNALS:
        return None, f"Lean was killed by {signal.Signals(died_of).name}"
    if died_of:
        return Verdict.CRASHED, f"Lean died of {signal.Signals(died_of).name}: {last_words}"
    if reading.doubt is Doubt.OURS:
        return None, reading.reason
    if reading.doubt is Doubt.CUT:
        return Verdict.CRASHED, last_words or reading.reason
    return Verdict.FAILED, reading.reason
