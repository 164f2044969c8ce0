"""The local Lean as a verifier: a pool of jailed Lean processes over a Lake project on this machine.

Without a REPL each check is a process, `lake env lean --json`; with the community REPL each worker keeps one
that has read the imports and checks every text from there. What goes wrong is believed as pool.py says; the
known theorem has the header of the check that failed.
"""

from __future__ import annotations

import json
import os
import secrets
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
from core.lean.intake import PROOF, TRUTH, Intake, Job
from core.lean.pool import Pool, trouble
from core.lean.project import open_project
from core.lean.sandbox import Jail
from core.lean.snippets import OURS, split_header
from core.lean.verdict import LeanCheck, LeanResult, Verdict


class LocalLean(Pool[Job, Jail]):
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
        lean = f"{self._project.version} {self._project.folder}"
        super().__init__(workers, Intake(lean, cache_entries))

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
        return self._submit(Job(check, own_text(check.code, check.problem), self._intake.key(check)))

    def healthy(self) -> str | None:
        return self._run_canaries("import Mathlib" if self._project.has("Mathlib") else "")

    def _canary(self, check: LeanCheck) -> Job:
        return Job(check, check.code, "")

    # --- a worker -------------------------------------------------------------------------------

    def _launch(self) -> Jail:
        jail = Jail(self._settings)
        holes = [what for what, shut in (("network", jail.no_network), ("disk", jail.confined)) if not shut]
        if holes:  # said wherever the verifier is named, from the canaries on
            self.name = f"local (this machine cannot shut Lean out of the {' and the '.join(holes)})"
        return jail

    def _check(self, index: int, jobs: list[Job]) -> None:
        (job,) = jobs
        self._check_alone(index, job)

    def _read_alone(self, index: int, job: Job) -> tuple[dict[str, Any], Reading]:
        imports, header = split_header(job.check.problem.header)
        piece = make_piece(job.check, job.code, secrets.token_hex(16), alone=True)
        file = make_file(OURS + clamp_heartbeats(header, MAX_HEARTBEATS), [piece], secrets.token_hex(16))
        # on the file's first line, so that a line has the same number with and without a REPL
        line = imports.replace("\n", " ")
        answer = self._run(index, lambda jail: jail.run(line, file.text, self._timeout_s))
        messages, fault = parse_answer(answer["output"], repl=self._settings["repl"])
        (reading,) = read_messages(file, messages)
        return answer, replace(reading, verdict=None, doubt=Doubt.OURS, reason=fault) if fault else reading

    def _trouble(self, answer: dict[str, Any], reading: Reading) -> tuple[Verdict | None, str]:
        return trouble(answer, reading, self._timeout_s)

    def _truth_passes(self, index: int, job: Job) -> bool:
        check = LeanCheck("canary", replace(TRUTH, header=job.check.problem.header), PROOF)
        return self._read_alone(index, self._canary(check))[1].verdict is Verdict.PROVED


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
