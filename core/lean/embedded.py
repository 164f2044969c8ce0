"""The embedded Lean as a verifier: a pool of sandboxed Lean processes on this machine, fed in batches.

Each worker thread owns a zygote (zygote.py), which holds Lean's libraries and forks a limited child a file.
Checks that cannot touch each other share a file. What a shared file leaves in doubt is checked again alone,
and what goes wrong alone is believed as pool.py says.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from core.lean.assemble import (
    MAX_HEARTBEATS,
    Reading,
    clamp_heartbeats,
    make_file,
    make_piece,
    own_text,
    read_messages,
)
from core.lean.intake import PROOF, TRUTH, Intake, Job
from core.lean.library import locate_library
from core.lean.pool import Pool, trouble
from core.lean.sandbox import LeanProcessError, Zygote
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

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


class EmbeddedLean(Pool[FileJob, Zygote]):
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
        super().__init__(workers, Intake(self._library.key, cache_entries))

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
        return self._submit(job)

    def healthy(self) -> str | None:
        return self._run_canaries("")

    def _canary(self, check: LeanCheck) -> FileJob:
        return FileJob(check, check.code, "", shareable=False, alone=True)

    # --- a worker -------------------------------------------------------------------------------

    def _launch(self) -> Zygote:
        return Zygote(self._library, self._memory_mb, self._max_output_bytes)

    def _next(self) -> list[FileJob]:
        """Jobs that may share a file, an even share of what waits."""
        share = math.ceil(len(self._jobs) / len(self._threads))
        jobs = super()._next()
        while not jobs[0].alone and self._jobs and len(jobs) < min(share, self._batch_size):
            if self._jobs[0].alone or self._jobs[0].check.problem.header != jobs[0].check.problem.header:
                break
            jobs.append(self._jobs.popleft())
        return jobs

    def _check(self, index: int, jobs: list[FileJob]) -> None:
        if len(jobs) == 1:
            self._check_alone(index, jobs[0])
        else:
            self._check_shared(index, jobs)

    def _read(self, index: int, jobs: list[FileJob]) -> tuple[dict[str, Any], list[Reading]]:
        """One run of Lean on a file of these jobs. Raises LeanProcessError; the next run starts afresh."""
        pieces = [
            make_piece(job.check, job.code, secrets.token_hex(16), alone=not job.shareable) for job in jobs
        ]
        header = "prelude import Prelude\n" + clamp_heartbeats(jobs[0].check.problem.header, MAX_HEARTBEATS)
        file = make_file(header, pieces, secrets.token_hex(16))
        answer = self._run(index, lambda zygote: zygote.run(file.text, self._timeout_s))
        messages = []
        for line in answer["output"].split("\n"):
            try:
                messages.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # cut off or not Lean's: then the evidence is missing too
        return answer, read_messages(file, messages)

    def _read_alone(self, index: int, job: FileJob) -> tuple[dict[str, Any], Reading]:
        answer, (reading,) = self._read(index, [job])
        return answer, reading

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
                    share = answer["seconds"] / len(jobs)
                    self._finish(job, reading.verdict, reading, reading.reason, share)
        for job in reversed(doubtful):
            job.alone = True
            self._enqueue(job, first=True)

    def _trouble(self, answer: dict[str, Any], reading: Reading) -> tuple[Verdict | None, str]:
        if answer["why"] == "output":
            return Verdict.CRASHED, f"more than {self._max_output_bytes} bytes of messages"
        return trouble(answer, reading, self._timeout_s)

    def _truth_passes(self, index: int, job: FileJob) -> bool:
        try:
            _, reading = self._read_alone(index, self._canary(LeanCheck("canary", TRUTH, PROOF)))
        except LeanProcessError:
            return False
        return reading.verdict is Verdict.PROVED


def _shareable(problem: Problem, code: str) -> bool:
    """Whether the text holds only theorems and definitions with simple names: what it declares then stays
    in its namespace, and nothing it says reaches another's."""
    return not any(_REACHING.search(text) for text in (problem.name, problem.statement, code))
