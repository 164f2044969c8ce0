"""A pool of Lean processes on this machine: its queue, its threads, and what is believed of a failed run.

What goes wrong is believed only when it repeats and a known theorem passes right behind it: a killed, stopped
or deleted Lean ends in UNKNOWN, never in a zero.
"""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from core.lean.assemble import Doubt, Reading
from core.lean.intake import Intake, Job, run_canaries
from core.lean.sandbox import Jail, LeanProcessError, Zygote
from core.lean.verdict import LeanCheck, LeanResult, Verdict

MAX_TRIES = 4  # runs of one check alone before it is given up as UNKNOWN
IDLE_SHARE = 0.05  # a timeout that used less of its time on a CPU was not the doing of the proof
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
AnyJob = TypeVar("AnyJob", bound=Job)
AnyProcess = TypeVar("AnyProcess", Zygote, Jail)


class Pool(ABC, Generic[AnyJob, AnyProcess]):
    """What the embedded and the local Lean share: worker threads, each with a process of its own."""

    name: str

    def __init__(self, workers: int, intake: Intake) -> None:
        """Starts the threads: to be called when all else is set up."""
        self._intake = intake
        self.counts = intake.counts
        self._jobs: deque[AnyJob] = deque()
        self._lock = threading.Condition()
        self._closed = False
        self._processes: list[AnyProcess | None] = [None] * workers
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"lean-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    # --- what a backend adds --------------------------------------------------------------------

    @abstractmethod
    def _canary(self, check: LeanCheck) -> AnyJob:
        """A canary's job, which no scan and no cache sees."""

    @abstractmethod
    def _launch(self) -> AnyProcess:
        """A new process. Raises LeanProcessError."""

    @abstractmethod
    def _check(self, index: int, jobs: list[AnyJob]) -> None:
        """Settle jobs that were taken together, or put them back."""

    @abstractmethod
    def _read_alone(self, index: int, job: AnyJob) -> tuple[dict[str, Any], Reading]:
        """One run of Lean on a file of this job. Raises LeanProcessError; the next run starts afresh."""

    @abstractmethod
    def _trouble(self, answer: dict[str, Any], reading: Reading) -> tuple[Verdict | None, str]:
        """What a run without evidence points to; see `trouble`."""

    @abstractmethod
    def _truth_passes(self, index: int, job: AnyJob) -> bool:
        """Whether a known theorem is proved now by the process that has just failed on `job`."""

    def _next(self) -> list[AnyJob]:
        """The jobs to take now, of those that wait; called with the lock held."""
        return [self._jobs.popleft()]

    # --- the protocol ---------------------------------------------------------------------------

    def _submit(self, job: AnyJob) -> Future[LeanResult]:
        if not self._intake.answered(job):
            self._enqueue(job, first=False)
        return job.future

    def _run_canaries(self, header: str) -> str | None:
        """Check the canaries before everything that waits; None, or what came out wrong."""
        sick = run_canaries(self.name, header, self._ask_canary)
        return sick[0] if sick else None

    def _ask_canary(self, check: LeanCheck) -> Future[LeanResult]:
        job = self._canary(check)
        self._enqueue(job, first=True)
        return job.future

    def close(self) -> None:
        """Kill every process; checks that wait or run come back UNKNOWN."""
        with self._lock:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            processes = [process for process in self._processes if process is not None]
            self._lock.notify_all()
        for process in processes:
            process.process.kill()
        for job in waiting:
            self._intake.unknown(job, "the verifier was closed")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- the queue and its workers --------------------------------------------------------------

    def _enqueue(self, job: AnyJob, *, first: bool) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                (self._jobs.appendleft if first else self._jobs.append)(job)
                self._lock.notify()
        if closed:
            self._intake.unknown(job, "the verifier was closed")

    def _take(self) -> list[AnyJob]:
        """The next jobs; none when closed."""
        with self._lock:
            while not self._jobs and not self._closed:
                self._lock.wait()
            return [] if self._closed else self._next()

    def _work(self, index: int) -> None:
        """A thread's life: it owns `self._processes[index]`."""
        try:
            while jobs := self._take():
                self._check(index, jobs)
        finally:
            self._drop(index)

    def _drop(self, index: int) -> None:
        with self._lock:
            process, self._processes[index] = self._processes[index], None
        if process is not None:
            process.close()

    def _run(self, index: int, run: Callable[[AnyProcess], dict[str, Any]]) -> dict[str, Any]:
        """`run` on the worker's process, started if there is none. Raises LeanProcessError; the next run
        starts afresh."""
        try:
            return run(self._processes[index] or self._start(index))
        except LeanProcessError:
            self._drop(index)
            raise

    def _start(self, index: int) -> AnyProcess:
        if self._closed:
            raise LeanProcessError("the verifier was closed")
        process = self._launch()
        with self._lock:
            self._processes[index], closed = process, self._closed
        if closed:
            raise LeanProcessError("the verifier was closed")
        return process

    def _check_alone(self, index: int, job: AnyJob) -> None:
        """Check one job in a file of its own until its outcome is clear, or it has been tried too often."""
        before, reason = None, ""
        for _ in range(MAX_TRIES):
            try:
                answer, reading = self._read_alone(index, job)
                verdict, reason = reading.verdict, reading.reason
                if verdict is None:
                    verdict, reason = self._trouble(answer, reading)
                    last, before = before, verdict
                    if verdict is None or verdict is not last or not self._truth_passes(index, job):
                        continue
            except LeanProcessError as error:
                before, reason = None, str(error)
                continue
            return self._finish(job, verdict, reading, reason, answer["seconds"])
        return self._intake.unknown(job, reason)

    def _finish(self, job: AnyJob, verdict: Verdict, reading: Reading, reason: str, seconds: float) -> None:
        id, rule = job.check.id, reason or None
        self._intake.resolve(job, LeanResult(id, verdict, reading.messages, rule, seconds, raw=reading.raw))


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
