"""The embedded Lean, attacked one property a test: nothing false is proved, no outage becomes a verdict."""

# ruff: noqa: E501
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil
import pytest
from lean_cheats import CHEATS, FALSE

from core.config import LeanConfig
from core.errors import UserError
from core.lean import library
from core.lean.backends import make_verifier
from core.lean.embedded import EmbeddedLean, FileJob
from core.lean.intake import CANARIES
from core.lean.sandbox import Zygote
from core.lean.verdict import LeanCheck, LeanMessage, LeanResult, Verdict
from core.problems import Problem

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "workers": 2,
    "batch_size": 16,
    "timeout_s": 60.0,
    "memory_mb": 512,
    "max_output_bytes": 400_000,
    "cache_entries": 1000,
}


def settings(backend: Literal["auto", "embedded"]) -> LeanConfig:
    others = {"servers": None, "server_slots": 1, "project": None, "repl": None, "recycle_after": 1}
    return LeanConfig(backend=backend, retry_s=1.0, **others, **SETTINGS)


SWAP = Problem("swap", "theorem swap (p q : Prop) (h : And p q) : And q p :=", "", "", "test")
PROOF = "theorem swap (p q : Prop) (h : And p q) : And q p :=\n  ⟨h.right, h.left⟩"
# Doubles the digits of a number 40 times: hours of honest work for the kernel's arithmetic, or all memory.
TOWER = """def tower (n : Nat) : Nat :=
  match n with
  | Nat.zero => 2
  | Nat.succ n => Nat.mul (tower n) (tower n)
"""
ENDLESS = Problem("endless", f"{TOWER}theorem endless : Eq (tower 40) 3 :=", "", "", "test")
ENDLESS_PROOF = f"{TOWER}theorem endless : Eq (tower 40) 3 := rfl"


@pytest.fixture(scope="module")
def lean():
    verifier = EmbeddedLean(**SETTINGS)
    yield verifier
    verifier.close()


@pytest.fixture
def fresh():
    """Makes verifiers of their own for tests that break them; all are closed."""
    made = []

    def make(**changes) -> EmbeddedLean:
        made.append(EmbeddedLean(**{**SETTINGS, "workers": 1, **changes}))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def check(code: str, problem: Problem = SWAP, name: str = "t") -> LeanCheck:
    return LeanCheck(name, problem, code)


def result(verifier: EmbeddedLean, code: str, problem: Problem = SWAP) -> LeanResult:
    return verifier.submit(check(code, problem)).result(timeout=250)


def honest(i: int) -> LeanCheck:
    return LeanCheck(f"honest {i}", SWAP, f"{PROOF} -- {i}")


def zygotes(verifier: EmbeddedLean) -> list[psutil.Process]:
    return [psutil.Process(z.process.pid) for z in verifier._processes if z is not None]


def lean_children(verifier: EmbeddedLean) -> list[psutil.Process]:
    try:
        return [child for zygote in zygotes(verifier) for child in zygote.children()]
    except psutil.NoSuchProcess:
        return []


def wait_for(condition, seconds: float = 30.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


class Saboteur:
    """Sends a signal to every process that `targets` finds, over and over."""

    def __init__(self, targets, what: signal.Signals) -> None:
        self._over = threading.Event()
        self._targets, self._what = targets, what
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._over.wait(0.001):
            for process in self._targets():
                try:
                    process.send_signal(self._what)
                except psutil.NoSuchProcess:
                    continue

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()


# --- verdicts -----------------------------------------------------------------------------------


def test_a_proof_is_proved(lean):
    assert result(lean, PROOF).verdict is Verdict.PROVED


HONEST = {
    "helper lemma": "theorem help (p q : Prop) (h : And p q) : q := h.right\n" + PROOF.replace("h.right", "help p q h"),
    "dotted helper": "theorem And.back (p q : Prop) (h : And p q) : q := h.right\n"
    + PROOF.replace("h.right", "And.back p q h"),
    "words in comments": "/- sorry /- axiom -/ -/\n" + PROOF + "\n-- admit",
    "words in names": "theorem axiomatic_sorry : True := True.intro\n" + PROOF,
    "odd white space": "\n\n   theorem   swap\n (p q   : Prop)(h:And p q)\n:And q p:=\n\n\n⟨h.2,h.1⟩\n\n\n",
    "windows line ends": PROOF.replace("\n", "\r\n"),
    "have chain": "theorem swap (p q : Prop) (h : And p q) : And q p :=\n  have hp : p := h.left\n"
    "  have _ : True := True.intro\n  have hq : q := h.right\n  show And q p from And.intro hq hp",
    "match": "theorem swap (p q : Prop) : And p q → And q p\n  | ⟨hp, hq⟩ => ⟨hq, hp⟩",
    "statement in other words": "theorem swap : ∀ (a b : Prop), And a b → And b a := fun _ _ ⟨l, r⟩ => .intro r l",
    "namespace of its own": "namespace X\ntheorem help (p q : Prop) (h : And p q) : q := h.2\nend X\nopen X\n"
    + PROOF.replace("h.right", "help p q h"),
    "options": "set_option maxRecDepth 1000 in\nset_option maxHeartbeats 100000 in\n" + PROOF,
    "attributes": "@[inline] def help : Nat := 1\n@[inline, reducible] def other : Nat := 2\n" + PROOF,
}  # fmt: skip


@pytest.mark.parametrize("code", HONEST.values(), ids=HONEST)
def test_honest_proofs_are_proved(lean, code):
    assert result(lean, code).verdict is Verdict.PROVED


def test_what_a_prover_of_the_tiny_family_needs_is_there(lean):
    cases = {
        "theorem a (n : Nat) : Eq (Nat.add 0 n) n": "match n with\n  | 0 => rfl\n  | Nat.succ n => congrArg Nat.succ (a n)",
        "theorem a (p q : Prop) (h : Iff p q) (k : p) : q": "h.mp k",
        "theorem a (p q : Prop) (h : Or p q) : Or q p": "h.elim Or.inr Or.inl",
        "theorem a (p : Nat → Prop) (h : Exists p) : Exists (fun n => Not (Not (p n)))": "match h with\n  | ⟨n, hn⟩ => ⟨n, fun no => no hn⟩",
        "theorem a (x y z : Nat) (h : Eq x y) (k : Eq y z) : Eq z x": "(h.trans k).symm",
        "theorem a (p : Prop) (h : p) (no : Not p) : Eq 1 2": "absurd h no",
        "theorem a (n : Nat) : Not (Eq (Nat.succ n) 0)": "fun h => nomatch h",
        "theorem a (n : Nat) (h : Eq n 3) : Eq (Nat.add n 2) 5": "h ▸ rfl",
    }
    futures = [
        lean.submit(check(f"{s} :=\n  {proof}", Problem("a", f"{s} :=", "", "", "")))
        for s, proof in cases.items()
    ]
    assert [f.result().verdict for f in futures] == [Verdict.PROVED] * len(cases)


def test_a_failure_comes_with_leans_message_at_the_models_position(lean):
    found = result(lean, PROOF.replace("h.right", "h.left"))
    # line 2, column 3: `  ⟨h.left, h.left⟩`, the anonymous constructor's first argument
    assert found.verdict is Verdict.FAILED
    assert [(m.severity, m.line, m.column, m.end_line, m.end_column) for m in found.messages] == [
        ("error", 2, 3, 2, 9)
    ]
    assert "Application type mismatch" in found.messages[0].text


def test_a_missing_name_is_a_failure(lean):
    found = result(lean, PROOF.replace("swap", "swapped"))
    assert (found.verdict, found.messages) == (
        Verdict.FAILED,
        (LeanMessage("error", 2, 19, None, None, "Unknown identifier `swap`"),),
    )


def test_messages_hold_no_random_names(fresh):
    codes = ["", "theorem swap : True := True.intro", PROOF.replace("h.right", "swap")]
    once, again = ([result(v, code) for code in codes] for v in (fresh(), fresh()))
    assert [r.messages for r in once] == [r.messages for r in again]


def test_a_statement_that_does_not_elaborate_is_not_the_proofs_fault(lean):
    found = result(lean, PROOF, Problem("swap", "theorem swap : Undefined :=", "", "", ""))
    assert found.verdict is Verdict.UNKNOWN
    assert "own statement" in (found.rule or "")


def test_a_statement_that_cannot_be_split_is_an_error(lean):
    with pytest.raises(ValueError, match="no theorem"):
        lean.submit(check(PROOF, Problem("swap", "swap", "", "", "")))


def test_a_problem_that_needs_a_library_is_an_error(lean):
    problem = replace(SWAP, header="import Mathlib\nopen Real")
    with pytest.raises(ValueError, match="swap has imports, and the embedded Lean has no library"):
        lean.submit(check(PROOF, problem))


def test_our_own_header_stands_before_the_statement(lean):
    problem = replace(SWAP, header="open And\nset_option maxHeartbeats 0")
    assert (
        result(lean, PROOF.replace("⟨h.right, h.left⟩", "intro h.right h.left"), problem).verdict
        is Verdict.PROVED
    )
    broken = replace(SWAP, header="open Nowhere")
    assert result(lean, PROOF, broken).verdict is Verdict.UNKNOWN


# --- cheats -------------------------------------------------------------------------------------


def test_every_cheat_is_stopped_for_its_reason_among_honest_neighbours(lean):
    futures = []
    for i, (name, rule, code) in enumerate(CHEATS):
        futures.append((name, rule, lean.submit(check(code, FALSE))))
        futures.append((f"honest {i}", None, lean.submit(honest(i))))
    for name, rule, future in futures:
        found = future.result()
        expected = Verdict.PROVED if rule is None else Verdict.REFUSED if rule else Verdict.FAILED
        assert (name, found.verdict, found.rule) == (name, expected, rule or None)


def submit_unscanned(verifier: EmbeddedLean, problem: Problem, code: str, *, shared: bool) -> Future:
    job = FileJob(check(code, problem), code, "unscanned", shareable=shared, alone=not shared)
    verifier._enqueue(job, first=False)
    return job.future


@pytest.mark.parametrize("shared", [True, False])
def test_no_cheat_is_proved_without_the_scan_and_none_hurts_its_neighbours(lean, shared):
    cheats = [(name, submit_unscanned(lean, FALSE, code, shared=shared)) for name, _, code in CHEATS]
    neighbours = [submit_unscanned(lean, SWAP, f"{PROOF} -- {shared} {i}", shared=True) for i in range(40)]
    believed = {name for name, future in cheats if future.result().verdict is Verdict.PROVED}
    assert believed == set()
    assert all(future.result().verdict is Verdict.PROVED for future in neighbours)


def test_batches_and_single_files_agree(fresh):
    codes = [code for _, rule, code in CHEATS if not rule] + list(HONEST.values())
    results = []
    for batch_size in (1, 16):
        verifier = fresh(batch_size=batch_size)
        futures = [verifier.submit(check(code)) for code in codes]
        results.append([replace(f.result(), seconds=0.0, raw="") for f in futures])
    assert results[0] == results[1]


def test_a_hundred_errors_hide_nothing(lean):
    wrong = [lean.submit(check(PROOF.replace("h.right", f"h.left /- {i} -/"))) for i in range(130)]
    assert {f.result().verdict for f in wrong} == {Verdict.FAILED}


def test_names_of_neighbours_do_not_collide(lean):
    code = "theorem help (p q : Prop) (h : And p q) : q := h.right\n" + PROOF.replace("h.right", "help p q h")
    other = code.replace("h.right", "h.left")  # its `help` is wrong
    futures = [lean.submit(check(f"{c} -- {i}")) for i in range(10) for c in (code, other)]
    assert [f.result().verdict for f in futures] == [Verdict.PROVED, Verdict.FAILED] * 10


# --- limits -------------------------------------------------------------------------------------


def test_endless_work_is_a_timeout_and_its_neighbours_are_proved(fresh):
    verifier = fresh(workers=2, timeout_s=2.0, memory_mb=8192)
    first = [verifier.submit(honest(i)) for i in range(4)]
    endless = verifier.submit(check(ENDLESS_PROOF, ENDLESS))
    then = [verifier.submit(honest(i)) for i in range(4, 8)]
    assert [f.result().verdict for f in (*first, *then)] == [Verdict.PROVED] * 8
    found = endless.result()
    assert (found.verdict, found.rule) == (Verdict.TIMEOUT, "no answer in 2 s")
    assert verifier.counts == {"proved": 8, "timeout": 1}


def test_a_memory_bomb_is_a_crash(fresh):
    found = result(fresh(memory_mb=128), ENDLESS_PROOF, ENDLESS)
    assert found.verdict is Verdict.CRASHED
    assert "memory" in (found.rule or "").lower()


def test_a_stack_overflow_is_a_crash(lean):
    found = result(lean, PROOF + "\ntheorem deep : True := " + "fun a => " * 100_000 + "True.intro")
    assert found.verdict is Verdict.CRASHED
    assert "SIGABRT" in (found.rule or "")


def test_a_flood_of_messages_is_cut(lean):
    found = result(lean, PROOF + "\ntheorem x : And True True := ⟨unknown_name, another⟩" * 2000)
    assert (found.verdict, found.rule) == (Verdict.CRASHED, "more than 400000 bytes of messages")


@pytest.fixture(scope="module")
def jailed():
    """What Lean's child may do, tried from inside it: a zygote whose `lean_main` is a shell of ours."""
    probe = r"""
import os, socket, sys
sys.path.insert(0, os.path.dirname({path!r}))
import zygote
def attempt(name, action):
    try:
        action()
    except OSError as error:
        return f"{name}: {type(error).__name__} {error.errno}"
    return f"{name}: done"
def write():
    with open("/tmp/lean-drgrpo-probe", "w") as file:
        file.write("x" * 10)
def connect():
    socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=2)
def bomb():
    for _ in range(200):
        if os.fork() == 0:
            import time
            time.sleep(30)
            os._exit(0)  # or it would go on with the loop, and so would its children
def many_files():
    for _ in range(64):
        os.dup(0)
def fake_main(library, arguments):
    for name, action in (("write", write), ("connect", connect), ("files", many_files), ("fork", bomb)):
        print(attempt(name, action), flush=True)
    print("environment:", sorted(os.environ), flush=True)
    print("session:", os.getsid(0) == os.getpid(), flush=True)
    return 0
zygote.lean_main = fake_main
zygote.serve(*sys.argv[1:2], *map(int, sys.argv[2:]))
"""
    return probe.replace("{path!r}", repr(str(library.WORKER_FILE)))


def test_the_sandbox_holds_against_code_that_reaches_the_machine(jailed, tmp_path, monkeypatch):
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    source = jailed.replace('os.environ["PORT"]', str(server.getsockname()[1]))
    script = tmp_path / "probe.py"
    script.write_text(f"import sys\nsys.argv.pop(1)\n{source}")  # `serve` of the real command line is dropped
    monkeypatch.setattr("core.lean.sandbox.WORKER_FILE", script)
    zygote = Zygote(library.locate_library(), 512, 100_000)
    try:
        answer = zygote.run("", 30.0)
        left = psutil.Process(zygote.process.pid).children(recursive=True)
    finally:
        zygote.close()
        server.close()
    lines = answer["output"].splitlines()
    assert "write: OSError 27" in lines  # EFBIG: no file may grow
    assert "files: OSError 24" in lines  # EMFILE
    if zygote.no_network:
        assert any(line.startswith("connect: ") and "done" not in line for line in lines)
    allowed = {"LEAN_PATH", "MALLOC_ARENA_MAX", "MIMALLOC_ARENA_RESERVE", "LC_CTYPE"}
    (environment,) = [line for line in lines if line.startswith("environment:")]
    assert set(eval(environment.split(":", 1)[1])) <= allowed
    assert "session: True" in lines
    assert left == []  # the fork bomb's children are gone with the check
    Path("/tmp/lean-drgrpo-probe").unlink(missing_ok=True)


# --- outages ------------------------------------------------------------------------------------


def test_a_killed_zygote_is_replaced(fresh):
    verifier = fresh()
    assert result(verifier, PROOF).verdict is Verdict.PROVED
    (zygote,) = zygotes(verifier)
    zygote.kill()
    assert result(verifier, f"{PROOF} -- again").verdict is Verdict.PROVED
    assert zygotes(verifier)[0].pid != zygote.pid


@pytest.mark.parametrize(
    ("what", "timeout_s"), [(signal.SIGKILL, 20.0), (signal.SIGTERM, 20.0), (signal.SIGSTOP, 1.0)]
)
def test_a_lean_that_is_killed_or_stopped_from_outside_is_unknown(fresh, what, timeout_s):
    verifier = fresh(timeout_s=timeout_s, memory_mb=8192)
    assert result(verifier, PROOF).verdict is Verdict.PROVED
    with Saboteur(lambda: lean_children(verifier), what):
        found = result(verifier, ENDLESS_PROOF, ENDLESS)
    assert found.verdict is Verdict.UNKNOWN
    assert result(verifier, f"{PROOF} -- after").verdict is Verdict.PROVED


def test_a_stopped_lean_is_tried_again(fresh):
    verifier = fresh(timeout_s=3.0, memory_mb=8192)
    assert result(verifier, PROOF).verdict is Verdict.PROVED
    (zygote,) = zygotes(verifier)
    # stop the first child that appears, once
    future = verifier.submit(check(f"{PROOF} -- stopped"))
    stopped = 0
    while not future.done() and not stopped:
        for child in lean_children(verifier):
            try:
                child.suspend()
                stopped += 1
            except psutil.NoSuchProcess:
                continue
    assert future.result().verdict is Verdict.PROVED
    assert zygote.is_running()


def test_zygotes_that_keep_dying_make_unknown_and_unhealthy(fresh, tmp_path, monkeypatch):
    dying = tmp_path / "dying.py"
    dying.write_text('print(\'{"ready": true, "no_network": true}\', flush=True)\ninput()\n')
    verifier = fresh()
    with monkeypatch.context() as patch:
        patch.setattr("core.lean.sandbox.WORKER_FILE", dying)
        found = result(verifier, PROOF)
        assert (found.verdict, found.rule) == (Verdict.UNKNOWN, "Lean's process died")
        assert "a known theorem came back unknown (Lean's process died)" in (verifier.healthy() or "")
    assert verifier.healthy() is None
    assert result(verifier, PROOF).verdict is Verdict.PROVED


def test_a_stopped_zygote_is_replaced(fresh, monkeypatch):
    monkeypatch.setattr("core.lean.sandbox.ANSWER_SLACK_S", 0.5)
    verifier = fresh(timeout_s=2.0)
    assert result(verifier, PROOF).verdict is Verdict.PROVED
    (zygote,) = zygotes(verifier)
    zygote.suspend()
    assert result(verifier, f"{PROOF} -- stopped").verdict is Verdict.PROVED


def test_deleted_libraries_make_unknown_and_say_so(fresh, tmp_path):
    verifier = fresh()
    here = verifier._library
    verifier._library = replace(here, shared=tmp_path)
    found = result(verifier, PROOF)
    assert found.verdict is Verdict.UNKNOWN
    assert "a known theorem came back unknown" in (verifier.healthy() or "")
    verifier._library = here
    assert verifier.healthy() is None
    assert result(verifier, PROOF).verdict is Verdict.PROVED  # UNKNOWN was not cached


def test_a_deleted_prelude_makes_unknown(fresh, tmp_path):
    verifier = fresh()
    verifier._library = replace(verifier._library, compiled=tmp_path)
    found = result(verifier, PROOF)
    assert found.verdict is Verdict.UNKNOWN


def test_canaries_come_out_right_and_are_not_counted(fresh):
    verifier = fresh()
    assert verifier.healthy() is None
    assert verifier.counts == {}
    assert [truth for _, _, _, truth in CANARIES] == [True, False, False, False, False, False]


def test_a_lean_that_believes_everything_fails_its_canaries(fresh, monkeypatch):
    """The prelude is swapped for one where every proposition has a proof that costs no axiom to name."""
    verifier = fresh()
    falsehood = tuple((w, p, c, not t) for w, p, c, t in CANARIES)
    monkeypatch.setattr("core.lean.intake.CANARIES", falsehood)
    assert "a known theorem came back proved" in (verifier.healthy() or "")


# --- life and death -----------------------------------------------------------------------------


def test_close_leaves_nothing_behind_and_resolves_everything(fresh):
    verifier = fresh(workers=2, memory_mb=8192)
    futures = [verifier.submit(check(f"{ENDLESS_PROOF} -- {i}", ENDLESS)) for i in range(6)]
    wait_for(lambda: len(lean_children(verifier)) == 2)
    processes = zygotes(verifier) + lean_children(verifier)
    verifier.close()
    assert [f.result(timeout=1).verdict for f in futures] == [Verdict.UNKNOWN] * 6
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes), 5)
    assert not any(t.is_alive() for t in verifier._threads)
    assert result(verifier, PROOF).verdict is Verdict.UNKNOWN
    verifier.close()


TRAINER = """
import sys, time
from test_lean_embedded import *
verifier = EmbeddedLean(**{**SETTINGS, "memory_mb": 8192})
for i in range(2):
    verifier.submit(check(f"{ENDLESS_PROOF} -- {i}", ENDLESS))
wait_for(lambda: len(lean_children(verifier)) == 2)
print(*[p.pid for p in zygotes(verifier) + lean_children(verifier)], flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["time.sleep(600)", "sys.exit(0)"])
def test_nothing_outlives_the_trainer(ending):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", TRAINER.replace("{ending}", ending)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 4
    if "sleep" in ending:
        trainer.send_signal(signal.SIGKILL)
    trainer.wait(timeout=30)
    trainer.stdout.close()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 10)


def test_no_zombies_and_flat_handles(lean):
    futures = [lean.submit(check(f"open Nat\n{PROOF} -- {i}")) for i in range(5)]
    assert {f.result().verdict for f in futures} == {Verdict.PROVED}
    before = len(os.listdir("/proc/self/fd"))
    futures = [lean.submit(check(f"open Nat\n{PROOF} -- again {i}")) for i in range(30)]
    assert {f.result().verdict for f in futures} == {Verdict.PROVED}
    assert len(os.listdir("/proc/self/fd")) == before
    for zygote in zygotes(lean):
        assert zygote.num_fds() < 12
        assert zygote.children() == []


# --- cache, queue, set-up -----------------------------------------------------------------------


def test_equal_texts_are_checked_once(fresh):
    verifier = fresh(cache_entries=2)
    wrong = PROOF.replace("h.right", "h.left")
    first = [result(verifier, code) for code in (PROOF, wrong)]
    for process in zygotes(verifier):
        process.kill()
    verifier._library = replace(verifier._library, shared=ROOT)  # there is no Lean to ask any more
    again = [verifier.submit(check(code, name="other")).result() for code in (PROOF, wrong)]
    assert [replace(r, id="t", seconds=0.0) for r in again] == [replace(r, seconds=0.0) for r in first]
    assert [r.id for r in again] == ["other", "other"]
    assert verifier.counts["cached"] == 2
    verifier.submit(check("sorry")).result()
    renamed = Problem("swap", SWAP.statement + " ", "", "", "")
    assert result(verifier, PROOF, renamed).verdict is Verdict.UNKNOWN  # another statement, another key


def test_a_text_that_is_being_read_is_not_read_twice(fresh):
    verifier = fresh(cache_entries=0)
    names = [f"twin {number}" for number in range(40)]
    futures = [verifier.submit(check(PROOF, name=name)) for name in names]
    results = [future.result() for future in futures]
    assert [r.id for r in results] == names
    assert {r.verdict for r in results} == {Verdict.PROVED}
    assert verifier.counts["proved"] == 40
    assert verifier.counts["cached"] >= 30  # the first is at work while the others come
    assert sum(r.seconds > 0 for r in results) == 40 - verifier.counts["cached"]


def test_answers_come_while_others_are_still_at_work(fresh):
    verifier = fresh(workers=2, timeout_s=20.0, memory_mb=8192)
    slow = verifier.submit(check(ENDLESS_PROOF, ENDLESS))
    assert result(verifier, PROOF).verdict is Verdict.PROVED
    assert not slow.done()


def test_a_cancelled_check_disturbs_nobody(fresh):
    verifier = fresh()
    futures = [verifier.submit(honest(i)) for i in range(30)]
    cancelled = [f for f in futures if f.cancel()]
    assert {f.result().verdict for f in futures if f not in cancelled} <= {Verdict.PROVED}
    assert result(verifier, PROOF).verdict is Verdict.PROVED


def test_the_prelude_is_compiled_once_by_processes_that_race(tmp_path):
    code = "from core.lean.library import locate_library; print(locate_library().compiled)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        for _ in range(3)
    ]
    folders = {racer.communicate(timeout=120)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "lean-drgrpo").iterdir()] == [Path(folders.pop()).name]


def test_a_prelude_that_does_not_compile_leaves_no_cache(tmp_path, monkeypatch):
    broken = tmp_path / "Prelude.lean"
    broken.write_text("prelude\ntheorem t : Nonsense := x\n")
    monkeypatch.setattr(library, "PRELUDE_FILE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="could not compile"):
        library.locate_library()
    assert list((tmp_path / "cache" / "lean-drgrpo").iterdir()) == []


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME"):
        library.locate_library()


def test_without_the_wheel_the_other_backends_are_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"(?s)lean.backend=auto: .*kimina .* or local"):
        make_verifier(settings("auto"))


def test_auto_takes_the_embedded_lean_and_says_so():
    verifier = make_verifier(settings("auto"))
    assert verifier.name == "embedded"
    verifier.close()
