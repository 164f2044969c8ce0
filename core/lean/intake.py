"""What every verifier does with a check before Lean and after it: scan, cache, counts, canaries."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace

from core.lean.scan import scan
from core.lean.verdict import LeanCheck, LeanMessage, LeanResult, Verdict
from core.problems import Problem

TRUTH = Problem("canary", "theorem canary (p q : Prop) (h : And p q) : And q p :=", "", "", "canary")
PROOF = "theorem canary (p q : Prop) (h : And p q) : And q p := ⟨h.right, h.left⟩"
FALSEHOOD = Problem("canary", "theorem canary (p q : Prop) (h : p) : And p q :=", "", "", "canary")
ONE = Problem("canary", "theorem canary : Eq (Nat.ble 1 2) true :=", "", "", "canary")
CANARIES = (
    ("a known theorem", TRUTH, PROOF, True),
    ("a falsehood", FALSEHOOD, "theorem canary (p q : Prop) (h : p) : And p q := ⟨h, h⟩", False),
    ("a sorry", FALSEHOOD, "theorem canary (p q : Prop) (h : p) : And p q := sorry", False),
    (
        "an axiom",
        FALSEHOOD,
        "axiom magic : ∀ p : Prop, p\ntheorem canary (p q : Prop) (h : p) : And p q := magic _",
        False,
    ),
    ("another statement", FALSEHOOD, "theorem canary (p : Prop) (h : p) : p := h", False),
    ("a native proof", ONE, "theorem canary : Eq (Nat.ble 1 2) true := by native_decide", False),
)


@dataclass(eq=False)
class Job:
    """A check under way; `code` is `own_text` of its text."""

    check: LeanCheck
    code: str
    key: str
    """Of the cache; empty for a canary, which is neither scanned nor cached nor counted."""
    future: Future[LeanResult] = field(default_factory=Future, kw_only=True)


class Intake:
    """The cache of verdicts by content and their counts; safe to use from any thread.

    A text that Lean is reading already is not read twice: its twins wait for the first one's answer.
    """

    def __init__(self, lean: str, cache_entries: int) -> None:
        """`lean` names what judges: verdicts are the same only under the same name."""
        self._lean, self._cache_entries = lean, cache_entries
        self._cache: OrderedDict[str, LeanResult] = OrderedDict()
        self._twins: dict[str, list[Job]] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Verdicts so far, by name; refusals also as `refused/RULE`, cache hits as `cached`."""

    def key(self, check: LeanCheck) -> str:
        """The cache's key of a check: everything that decides about its answer."""
        problem = check.problem
        parts = (self._lean, problem.header, problem.statement, str(check.goals), check.code)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def answered(self, job: Job) -> bool:
        """Whether the job needs no Lean of its own: the cache knows its answer, the scan refuses its text,
        or a twin is being read."""
        with self._lock:
            cached = self._cache.get(job.key)
            twins = self._twins.get(job.key)
            if cached is not None:
                self._cache.move_to_end(job.key)
            elif twins is None:
                self._twins[job.key] = []
            else:
                twins.append(job)
            if cached is not None or twins is not None:
                self.counts["cached"] += 1
        if cached is not None:
            self.resolve(job, replace(cached, id=job.check.id, seconds=0.0))
        elif twins is not None:
            return True
        elif refusal := scan(job.code, job.check.problem):
            message = f"{refusal.rule}: {refusal.reason}"
            at = LeanMessage("error", refusal.line, refusal.column, None, None, message)
            self.resolve(job, LeanResult(job.check.id, Verdict.REFUSED, (at,), refusal.rule, 0.0))
        return job.future.done()

    def fail(self, job: Job, error: Exception) -> None:
        """Let whoever waits for the job have the error."""
        for waiting in (job, *self._released(job)):
            with contextlib.suppress(InvalidStateError):  # the caller has cancelled it
                waiting.future.set_exception(error)

    def _released(self, job: Job) -> list[Job]:
        with self._lock:
            return self._twins.pop(job.key, [])

    def resolve(self, job: Job, result: LeanResult) -> None:
        """Count the result, remember what will not change, and hand it over, to the job's twins as well."""
        twins = self._released(job)
        if job.key:
            with self._lock:
                self.counts[result.verdict.value] += 1
                if result.verdict is Verdict.REFUSED:
                    self.counts[f"refused/{result.rule}"] += 1
                if result.verdict in (Verdict.PROVED, Verdict.FAILED):
                    self._cache[job.key] = result
                    while len(self._cache) > self._cache_entries:
                        self._cache.popitem(last=False)
        with contextlib.suppress(InvalidStateError):  # the caller has cancelled it
            job.future.set_result(result)
        for twin in twins:
            self.resolve(twin, replace(result, id=twin.check.id, seconds=0.0))

    def unknown(self, job: Job, reason: str) -> None:
        """The infrastructure failed."""
        self.resolve(job, LeanResult(job.check.id, Verdict.UNKNOWN, (), reason, 0.0))


def run_canaries(
    name: str, header: str, ask: Callable[[LeanCheck], Future[LeanResult]]
) -> tuple[str, Verdict] | None:
    """Ask about every canary, past scan and cache; None, or the first that came out wrong, and how."""
    asked = []
    for what, problem, code, true in CANARIES:
        expected = Verdict.PROVED if true else Verdict.FAILED
        asked.append((what, expected, ask(LeanCheck(what, replace(problem, header=header), code))))
    for what, expected, future in asked:
        result = future.result()
        if result.verdict is not expected:
            reason = f" ({result.rule})" if result.rule else ""
            return f"{name} Lean: {what} came back {result.verdict.value}{reason}", result.verdict
    return None
