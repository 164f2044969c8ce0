"""The embedded Lean as a verifier: a pool of sandboxed Lean processes on this machine, fed in batches.

Each worker thread owns a zygote (zygote.py), which holds Lean's libraries and forks a limited child a file.
Checks that cannot touch each other share a file. What a shared file leaves in doubt is checked again alone,
and what goes wrong alone is believed only when it repeats and a known theorem passes right behind it: a
killed, stopped or deleted Lean ends in UNKNOWN, never in a zero.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import signal
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

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
from core.lean.intake import PROOF, TRUTH, Intake, Job, run_canaries
from core.lean.library import locate_library
from core.lean.sandbox import LeanProcessError, Zygote
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

MAX_TRIES = 4  # runs of one check alone before it is given up as UNKNOWN
IDLE_SHARE = 0.05  # a timeout that used less of its time on a CPU was not the doing of the proof
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# What may reach beyond a text's own declarations; a text that holds it, even in a comment, has its own file.
_REACHING = re.compile(
    r"""@\[ | _root_ | \b(?:theorem|lemma|def)\s+[^\s:({\[]*\. | \b(?:namespace|section|end|mutual|open|export
    |universe|set_option|private|protected|scoped|local|deriving|attribute|class|structure|inductive|abbrev
    |noncomputable|nonrec|alias|where)\b""",
    re.VERBOSE,
)


@dataclass(eq=False)
class FileJob(Job):
    """A check and the file it goes into."""

    shareable: bool
    """Whether it is checked in a namespace of its own and may share a file."""
    alone: bool


class EmbeddedLean:
    """A Verifier over Lean 4.35 in a Python wheel, with our own prelude: no Mathlib, no tactics."""

    name = "embedded"

    def __init__(
        self,
        *,
        workers: int,
        batch_size: int,
        timeout_s: float,
        memory_mb: int,
        max_output_bytes: int,
        cache_entries: int,
    ) -> None:
        """`workers` processes at once; at most `batch_size` checks a file; `timeout_s` of wall clock and
        `memory_mb` of memory a file; raises ValueError where there is no embedded Lean."""
        self._library = locate_library()
        self._batch_size, self._timeout_s = batch_size, timeout_s
        self._memory_mb, self._max_output_bytes = memory_mb, max_output_bytes
        self._intake = Intake(self._library.key, cache_entries)
        self.counts = self._intake.counts
        self._jobs: deque[FileJob] = deque()
        self._lock = threading.Condition()
        self._closed = False
        self._zygotes: list[Zygote | None] = [None] * workers
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"lean-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    # --- the protocol ---------------------------------------------------------------------------

    def submit(self, check: LeanCheck) -> Future[LeanResult]:
        """Queue one check. Raises ValueError if the problem's own statement cannot be split, or if its
        header imports what this Lean does not have."""
        if "import" in check.problem.header:
            raise ValueError(
                f"the header of problem {check.problem.name} has imports, and the embedded Lean has no "
                "library; use the kimina or the local verifier for it"
            )
        code = own_text(check.code, check.problem)
        shareable = _shareable(check.problem, code)
        job = FileJob(check, code, self._intake.key(check), shareable, alone=not shareable)
        if not self._intake.answered(job):
            self._enqueue(job, first=False)
        return job.future

    def healthy(self) -> str | None:
        """Check the canaries before everything that waits; None, or what came out wrong."""
        sick = run_canaries(self.name, "", self._ask_canary)
        return sick[0] if sick else None

    def _ask_canary(self, check: LeanCheck) -> Future[LeanResult]:
        job = FileJob(check, check.code, "", shareable=False, alone=True)
        self._enqueue(job, first=True)
        return job.future

    def close(self) -> None:
        """Kill every process; checks that wait or run come back UNKNOWN."""
        with self._lock:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            zygotes = [zygote for zygote in self._zygotes if zygote is not None]
            self._lock.notify_all()
        for zygote in zygotes:
            zygote.process.kill()
        for job in waiting:
            self._intake.unknown(job, "the verifier was closed")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- the queue ------------------------------------------------------------------------------

    def _enqueue(self, job: FileJob, *, first: bool) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                (self._jobs.appendleft if first else self._jobs.append)(job)
                self._lock.notify()
        if closed:
            self._intake.unknown(job, "the verifier was closed")

    def _take(self) -> list[FileJob]:
        """The next jobs that may share a file, an even share of what waits; none when closed."""
        with self._lock:
            while not self._jobs and not self._closed:
                self._lock.wait()
            if self._closed:
                return []
            share = math.ceil(len(self._jobs) / len(self._threads))
            jobs = [self._jobs.popleft()]
            while not jobs[0].alone and self._jobs and len(jobs) < min(share, self._batch_size):
                if self._jobs[0].alone or self._jobs[0].check.problem.header != jobs[0].check.problem.header:
                    break
                jobs.append(self._jobs.popleft())
            return jobs

    # --- a worker -------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        """A thread's life: it owns `self._zygotes[index]`."""
        try:
            while jobs := self._take():
                if len(jobs) == 1:
                    self._check_alone(index, jobs[0])
                else:
                    self._check_shared(index, jobs)
        finally:
            zygote = self._zygotes[index]
            if zygote is not None:
                zygote.close()

    def _read(self, index: int, jobs: list[FileJob]) -> tuple[dict[str, Any], list[Reading]]:
        """One run of Lean on a file of these jobs. Raises LeanProcessError; the next run starts afresh."""
        pieces = [
            make_piece(job.check, job.code, secrets.token_hex(16), alone=not job.shareable) for job in jobs
        ]
        header = "prelude import Prelude\n" + clamp_heartbeats(jobs[0].check.problem.header, MAX_HEARTBEATS)
        file = make_file(header, pieces, secrets.token_hex(16))
        try:
            zygote = self._zygotes[index] or self._start(index)
            answer = zygote.run(file.text, self._timeout_s)
        except LeanProcessError:
            zygote, self._zygotes[index] = self._zygotes[index], None
            if zygote is not None:
                zygote.close()
            raise
        messages = []
        for line in answer["output"].split("\n"):
            try:
                messages.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # cut off or not Lean's: then the evidence is missing too
        return answer, read_messages(file, messages)

    def _start(self, index: int) -> Zygote:
        if self._closed:
            raise LeanProcessError("the verifier was closed")
        zygote = Zygote(self._library, self._memory_mb, self._max_output_bytes)
        with self._lock:
            self._zygotes[index] = zygote
            closed = self._closed
        if closed:
            raise LeanProcessError("the verifier was closed")
        return zygote

    def _check_shared(self, index: int, jobs: list[FileJob]) -> None:
        """Check several jobs in one file; those it leaves in doubt go back to be checked alone."""
        try:
            answer, readings = self._read(index, jobs)
        except LeanProcessError:
            doubtful = jobs
        else:
            doubtful = []
            for job, reading in zip(jobs, readings, strict=True):
                if reading.verdict is None:
                    doubtful.append(job)
                else:
                    self._finish(job, reading.verdict, reading, answer["seconds"] / len(jobs))
        for job in reversed(doubtful):
            job.alone = True
            self._enqueue(job, first=True)

    def _check_alone(self, index: int, job: FileJob) -> None:
        """Check one job in a file of its own until its outcome is clear, or it has been tried too often."""
        before, reason = None, ""
        for _ in range(MAX_TRIES):
            try:
                answer, (reading,) = self._read(index, [job])
            except LeanProcessError as error:
                before, reason = None, str(error)
                continue
            if reading.verdict is not None:
                return self._finish(job, reading.verdict, reading, answer["seconds"])
            verdict, reason = self._trouble(answer, reading)
            if verdict is not None and verdict is before and self._canary_passes(index):
                return self._finish(job, verdict, replace(reading, reason=reason), answer["seconds"])
            before = verdict
        return self._intake.unknown(job, reason)

    def _trouble(self, answer: dict[str, Any], reading: Reading) -> tuple[Verdict | None, str]:
        """What a run without evidence points to, if it happens twice: a verdict, or None for the
        infrastructure; and the reason."""
        died_of = answer["signal"]
        if answer["why"] == "timeout":
            if answer["cpu_seconds"] < IDLE_SHARE * answer["seconds"]:
                return None, "Lean stood still: it was stopped or starved"
            return Verdict.TIMEOUT, f"no answer in {self._timeout_s:g} s"
        if answer["why"] == "output":
            return Verdict.CRASHED, f"more than {self._max_output_bytes} bytes of messages"
        if died_of == signal.SIGXCPU:
            return Verdict.TIMEOUT, f"no answer in {self._timeout_s:g} s"
        if died_of in OUTSIDE_SIGNALS:
            return None, f"Lean was killed by {signal.Signals(died_of).name}"
        last_words = answer["errors"].strip().split("\n")[-1]
        if died_of:
            return Verdict.CRASHED, f"Lean died of {signal.Signals(died_of).name}: {last_words}"
        if reading.doubt is Doubt.OURS:
            return None, reading.reason
        if reading.doubt is Doubt.CUT:
            return Verdict.CRASHED, last_words or reading.reason
        return Verdict.FAILED, reading.reason

    def _canary_passes(self, index: int) -> bool:
        job = FileJob(LeanCheck("canary", TRUTH, PROOF), PROOF, "", shareable=False, alone=True)
        try:
            _, (reading,) = self._read(index, [job])
        except LeanProcessError:
            return False
        return reading.verdict is Verdict.PROVED

    def _finish(self, job: FileJob, verdict: Verdict, reading: Reading, seconds: float) -> None:
        rule = reading.reason or None
        result = LeanResult(job.check.id, verdict, reading.messages, rule, seconds, raw=reading.raw)
        self._intake.resolve(job, result)


def _shareable(problem: Problem, code: str) -> bool:
    """Whether the text holds only theorems and definitions with simple names: what it declares then stays
    in its namespace, and nothing it says reaches another's."""
    return not any(_REACHING.search(text) for text in (problem.name, problem.statement, code))
