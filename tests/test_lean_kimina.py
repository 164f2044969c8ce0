"""Kimina servers as a verifier, against the real server over the embedded Lean, with faults in between."""

from __future__ import annotations

import json
import threading
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_proxy import FAULTS, FaultyProxy
from kimina_cases import CRASH, ENDLESS, ENDLESS_PROOF, EXPECTED, HEADER, PROOF, SWAP, WRONG, mixed
from kimina_stack import KiminaServer, NoStackError, make_environment, serving
from lean_cheats import CHEATS, FALSE

from core.config import LeanConfig
from core.errors import UserError
from core.lean import kimina
from core.lean.backends import make_verifier
from core.lean.kimina import KiminaLean, Request
from core.lean.snippets import ServerFault, assemble, goals_before, read_answer, sendable, split_header
from core.lean.verdict import LeanCheck, LeanResult, Verdict
from core.problems import Problem

WAIT_S = 1100  # a machine that is busy with other things checks forty texts in minutes
pytestmark = pytest.mark.timeout(1200)
SETTINGS = {"slots": 2, "timeout_s": 60.0, "max_output_bytes": 400_000, "cache_entries": 1000}


@pytest.fixture(scope="session")
def environment() -> Path:
    """The server's own virtual environment; without a package index to make it from, no test here can run."""
    try:
        return make_environment()
    except NoStackError as error:
        pytest.skip(f"no Kimina server: {error}")


@pytest.fixture(scope="module")
def server(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KiminaServer]:
    with serving(environment, tmp_path_factory.mktemp("kimina") / "server", repls=2) as running:
        yield running


@pytest.fixture
def proxy(server: KiminaServer) -> Iterator[FaultyProxy]:
    made = FaultyProxy(server.port)
    yield made
    made.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., KiminaLean]]:
    """Makes verifiers; all are closed."""
    made = []

    def make(*urls: str, **changes: Any) -> KiminaLean:
        made.append(KiminaLean(servers=urls, **{**SETTINGS, **changes}))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


@pytest.fixture(scope="module")
def lean(server: KiminaServer) -> Iterator[KiminaLean]:
    verifier = KiminaLean(servers=[server.url], **SETTINGS)
    yield verifier
    verifier.close()


def check(code: str, problem: Problem = SWAP, **more: Any) -> LeanCheck:
    return LeanCheck("t", problem, code, **more)


def result(verifier: KiminaLean, code: str, problem: Problem = SWAP, **more: Any) -> LeanResult:
    return verifier.submit(check(code, problem, **more)).result(timeout=WAIT_S)


# --- the text and the answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "imports", "rest"),
    [
        (HEADER, "import Mathlib\n", "set_option maxHeartbeats 400000\n\nopen And"),
        ("import Mathlib theorem t : False := x", "import Mathlib\n", "theorem t : False := x"),
        ("import Mathlib.Data.Nat.Basic\nimport Lean\n", "import Mathlib\nimport Lean\n", ""),
        ("/- import Evil -/ import Mathlib -- why\nopen Nat", "import Mathlib\n", "-- why\nopen Nat"),
        ("open Nat", "import Init\n", "open Nat"),
    ],
)
def test_imports_are_in_one_order_and_alone_on_their_lines(header, imports, rest):
    assert split_header(header) == (imports, rest)


def test_what_the_server_takes_for_a_line_end_is_gone_from_our_text():
    mangled = Problem("t", "theorem t\x0c: True\u2028:=", "open\x85Nat\r\nopen And\ud800", "", "")
    clean = sendable(mangled)
    assert (clean.statement, clean.header) == ("theorem t : True :=", "open Nat\r\nopen And ")
    assert len(clean.header.splitlines()) == 2


FILE, _ = assemble(check(PROOF), PROOF)
NONCE = FILE.pieces[0].nonce
MESSAGES = [
    (FILE.starts[0] + FILE.pieces[0].mark_line - 1, "info", f"stmt_{NONCE} : Prop"),
    (
        FILE.starts[0] + FILE.pieces[0].check_line,
        "info",
        f"'check_{NONCE}' depends on axioms: [propext, Quot.sound]",
    ),
    (FILE.sentinel_line, "error", "type mismatch"),
]


def body(messages: list[tuple[int, str, str]], **more: Any) -> str:
    raw = [
        {"severity": severity, "pos": {"line": line, "column": 0}, "endPos": None, "data": data}
        for line, severity, data in messages
    ]
    return json.dumps(
        {"results": [{"id": "1", "time": 0.5, "response": {"env": 1, "messages": raw, **more}}]}
    )


def test_the_evidence_alone_is_a_proof():
    answer = read_answer(FILE, "1", 200, body(MESSAGES))
    assert (answer.reading.verdict, answer.suspected, answer.seconds) == (Verdict.PROVED, None, 0.5)
    listed = read_answer(FILE, "1", 200, body(MESSAGES, sorries=[{"goal": "p"}]))
    assert listed.reading.verdict is Verdict.FAILED
    native = [(line, s, data.replace("propext", "Lean.ofReduceBool")) for line, s, data in MESSAGES]
    assert read_answer(FILE, "1", 200, body(native)).reading.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("status", "text", "suspected"),
    [
        (500, "Internal Server Error", Verdict.CRASHED),
        (
            200,
            '{"results":[{"id":"1","error":"Lean REPL command timed out in 60.0 seconds"}]}',
            Verdict.TIMEOUT,
        ),
        (
            200,
            '{"results":[{"id":"1","error":"Snippet execution failed: JSON decode error"}]}',
            Verdict.CRASHED,
        ),
        (200, '{"results":[{"id":"1","response":{}}]}', Verdict.CRASHED),
        (200, '{"results":[{"id":"1","response":{"env":0}}]}', Verdict.CRASHED),
        (200, body(MESSAGES[:2]), Verdict.CRASHED),  # the sentinel's error is missing
        (200, body([MESSAGES[0], MESSAGES[2]]), Verdict.FAILED),  # Lean does not name the axioms
    ],
)
def test_what_is_no_evidence_is_only_suspected(status, text, suspected):
    answer = read_answer(FILE, "1", status, text)
    assert (answer.reading.verdict, answer.suspected) == (None, suspected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        '{"results":[{"id":"1","resp',
        '{"results":[]}',
        '{"results":[{"id":"2","response":{"env":0}}]}',
        '{"results":[{"id":"1"}]}',
        '{"results":[{"id":"1","response":{"message":"Unknown environment."}}]}',
        '{"results":[{"id":"1","response":{"messages":[{"pos":{"line":1,"column":0}}]}}]}',
        '{"results":[{"id":"1","response":{"messages":["all is well"]}}]}',
        '{"results":[{"id":"1","error":"Lean REPL header command timed out in 60.0 seconds"}]}',
        '{"results":[{"id":"1","error":"No available REPLs"}]}',
        '{"detail":"Not Found"}',
        "null",
        body([(line, s, data.replace(NONCE, "0" * 32)) for line, s, data in MESSAGES]),  # another's answer
    ],
)
def test_what_says_nothing_about_the_proof_is_the_servers_fault(text):
    with pytest.raises(ServerFault):
        read_answer(FILE, "1", 200, text)


# `theorem onepp : 1+1 = 2:= by rfl` with infotree "original", as the community REPL answers.
TREE = [
    {
        "node": {
            "stx": {
                "range": {
                    "synthetic": False,
                    "start": {"line": 1, "column": 26},
                    "finish": {"line": 1, "column": 32},
                },
                "pp": "by rfl",
            },
            "name": "Lean.Parser.Term.byTactic",
            "goalsBefore": ["⊢ 1 + 1 = 2"],
            "goalsAfter": [],
        },
        "kind": "TacticInfo",
        "children": [
            {
                "node": {
                    "stx": {
                        "range": {
                            "synthetic": False,
                            "start": {"line": 1, "column": 29},
                            "finish": {"line": 1, "column": 32},
                        },
                        "pp": "rfl",
                    },
                    "name": "Lean.Parser.Tactic.tacticRfl",
                    "goalsBefore": ["case a\n⊢ 1 + 1 = 2", "case b\n⊢ True"],
                    "goalsAfter": [],
                },
                "kind": "TacticInfo",
                "children": [],
            }
        ],
    }
]


def test_goals_are_those_of_the_innermost_tactic():
    assert goals_before(TREE, 1, 27) == "⊢ 1 + 1 = 2"
    assert goals_before(TREE, 1, 30) == "case a\n⊢ 1 + 1 = 2\n\ncase b\n⊢ True"
    assert goals_before(TREE, 2, 0) == ""
    assert goals_before([{"node": {"stx": {}}, "children": None}, {}], 1, 0) == ""


def test_typing_is_left_as_it_was():
    assert typing.TypedDict.__module__ == "typing"


# --- verdicts of the real server ----------------------------------------------------------------


def test_canaries_come_out_right_and_are_not_counted(lean):
    before = dict(lean.counts)
    assert lean.healthy() is None
    assert lean.counts == before


def test_a_proof_is_proved_and_its_raw_answer_kept(lean):
    found = result(lean, PROOF)
    assert (found.id, found.verdict, found.messages) == ("t", Verdict.PROVED, ())
    assert (
        "does not depend on any axioms"
        in json.loads(found.raw)["results"][0]["response"]["messages"][1]["data"]
    )


def test_a_failure_comes_with_leans_message_at_the_models_position(lean):
    found = result(lean, WRONG)
    # line 2, column 3: `  ⟨h.left, h.left⟩`, the anonymous constructor's first argument
    assert found.verdict is Verdict.FAILED
    assert [(m.severity, m.line, m.column, m.end_line, m.end_column) for m in found.messages] == [
        ("error", 2, 3, 2, 9)
    ]
    assert (found.goals, found.raw) == ((), "")


def test_goals_are_asked_for_where_they_are_wanted(proxy, connect):
    verifier = connect(proxy.url)
    assert result(verifier, WRONG).goals == ()
    assert result(verifier, PROOF, goals=True).goals == ()
    asked = proxy._count
    assert result(verifier, WRONG, goals=True).goals == ("⊢ the goal",)
    assert proxy._count == asked + 2


def test_every_cheat_is_stopped_for_its_reason(lean):
    problem = replace(FALSE, header="import Mathlib")
    futures = [(name, rule, lean.submit(check(code, problem))) for name, rule, code in CHEATS]
    for name, rule, future in futures:
        found = future.result(timeout=WAIT_S)
        expected = Verdict.REFUSED if rule else Verdict.FAILED
        assert (name, found.verdict, found.rule) == (name, expected, rule or None)


@pytest.mark.parametrize(
    "code",
    [
        "import Mathlib theorem swap : False := nonsense",
        "",
        "import Mathlib\n\n\n",
        "theorem swap (p q : Prop) (h : And p q) : And q p := sorry",
        "axiom magic : ∀ p : Prop, p\ntheorem swap (p q : Prop) (h : And p q) : And q p := magic _",
        "-- \u2028theorem swap : False := nonsense",
    ],
)
def test_what_fools_the_servers_own_client_is_no_proof_even_without_the_scan(lean, code):
    request = Request(check(code), code, "unscanned")
    lean._enqueue(request)
    assert request.future.result(timeout=WAIT_S).verdict is not Verdict.PROVED


def test_a_lone_surrogate_is_refused_and_disturbs_nobody(lean):
    codes = [f"{PROOF} -- \ud800", f"{PROOF} -- beside it"]
    verdicts = [lean.submit(check(code)) for code in codes]
    assert [f.result().verdict for f in verdicts] == [Verdict.REFUSED, Verdict.PROVED]
    ours = replace(
        SWAP, header=f"{HEADER} -- \ud800\u2028", statement=SWAP.statement.replace(" (h", "\x0c(h")
    )
    assert result(lean, f"{PROOF} -- ours", ours).verdict is Verdict.PROVED


def test_snippets_share_no_declarations(lean):
    for header in (HEADER, ""):
        problem = replace(SWAP, header=header)
        helper = "theorem help (p q : Prop) (h : And p q) : q := h.right\n"
        using = PROOF.replace("h.right", "help p q h")
        assert result(lean, helper + using, problem).verdict is Verdict.PROVED
        assert result(lean, using, problem).verdict is Verdict.FAILED


def test_a_statement_that_does_not_elaborate_is_not_the_proofs_fault(lean, monkeypatch):
    monkeypatch.setattr(kimina, "REST_S", (0.01, 0.1))
    found = result(lean, PROOF, Problem("swap", "theorem swap : Undefined :=", HEADER, "", ""))
    assert (found.verdict, "own statement" in (found.rule or "")) == (Verdict.UNKNOWN, True)
    with pytest.raises(ValueError, match="no theorem"):
        lean.submit(check(PROOF, Problem("swap", "swap", HEADER, "", "")))


def test_endless_work_is_a_timeout_only_when_it_repeats(proxy, connect):
    for timeout_s in (4.0, 12.0, 36.0):  # on a busy machine the theorem behind it may need the longer ones
        verifier, asked = connect(proxy.url, timeout_s=timeout_s), proxy._count
        found = result(verifier, ENDLESS_PROOF, ENDLESS)
        if found.verdict is not Verdict.UNKNOWN:
            break
    assert found.verdict is Verdict.TIMEOUT
    assert proxy._count >= asked + 3  # twice the proof, once the canary behind it
    assert "timed out" in (found.rule or "")


def test_a_crash_is_one_only_when_it_repeats(lean):
    crash = lean.submit(check(CRASH))
    beside = [lean.submit(check(f"{PROOF} -- {i}")) for i in range(4)]
    assert crash.result(timeout=WAIT_S).verdict is Verdict.CRASHED
    assert {f.result(timeout=WAIT_S).verdict for f in beside} == {Verdict.PROVED}


def test_a_flood_of_messages_is_a_crash(connect, server):
    verifier = connect(server.url, max_output_bytes=20_000)
    found = result(verifier, PROOF + "\ntheorem x : And True True := ⟨unknown_name, another⟩" * 200)
    assert (found.verdict, found.rule) == (Verdict.CRASHED, "more than 20000 bytes of messages")


def test_equal_texts_are_asked_once(proxy, connect):
    verifier = connect(proxy.url)
    first = [result(verifier, code) for code in (PROOF, WRONG)]
    asked = proxy._count
    again = [result(verifier, code) for code in (PROOF, WRONG)]
    assert [replace(r, seconds=0.0) for r in again] == [replace(r, seconds=0.0) for r in first]
    assert (proxy._count, verifier.counts["cached"]) == (asked, 2)


# --- faults -------------------------------------------------------------------------------------


def ask_all(verifier: KiminaLean, count: int, mark: str) -> int:
    """Every check gets one verdict, none is wrong; returns how many are censored."""
    checks = mixed(count, mark)
    results = [future.result(timeout=WAIT_S) for future in map(verifier.submit, checks)]
    assert [r.id for r in results] == [c.id for c in checks]
    for i, found in enumerate(results):
        assert found.verdict in (EXPECTED[i % 5], Verdict.UNKNOWN), found
    assert sum(verifier.counts[v.value] for v in Verdict) == count
    censored = sum(r.verdict is Verdict.UNKNOWN for r in results)
    assert verifier.counts["unknown"] == censored
    return censored


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_makes_a_wrong_verdict(proxy, connect, monkeypatch, fault):
    if fault == "hang":
        monkeypatch.setattr(kimina, "SILENCE_S", 6.0 - 2 * SETTINGS["timeout_s"])
    verifier = connect(proxy.url)
    proxy.fault, proxy.every = fault, 15 if fault == "hang" else 4
    censored = ask_all(verifier, 40, fault)
    assert proxy.hits > 0
    assert censored < 20  # retries mend most


@pytest.mark.parametrize("fault", ["reset", "500", "html"])
def test_a_server_that_fails_always_makes_unknown_and_is_unhealthy(proxy, connect, monkeypatch, fault):
    monkeypatch.setattr(kimina, "REST_S", (0.01, 0.1))
    verifier = connect(proxy.url)
    proxy.fault = fault
    assert {f.result(timeout=WAIT_S).verdict for f in map(verifier.submit, mixed(4, fault))} == {
        Verdict.UNKNOWN
    }
    assert verifier.healthy()
    proxy.fault = ""
    assert verifier.healthy() is None
    assert result(verifier, PROOF).verdict is Verdict.PROVED  # UNKNOWN was not cached


def test_killed_repls_make_no_wrong_verdict(connect, server):
    verifier = connect(server.url)
    over, kills = threading.Event(), []

    def kill() -> None:
        seen = 0
        while not over.wait(0.01):  # a kill every five answers: however slow the machine, none hits one twice
            answered = sum(verifier.counts.values())
            for repl in server.repls()[:1] if answered >= seen + 5 else []:
                with suppress(psutil.NoSuchProcess):
                    repl.kill()
                kills.append(repl)
                seen = answered

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        ask_all(verifier, 40, "killed")
    finally:
        over.set()
        killer.join()
    assert len(kills) >= 2
    assert verifier.healthy() is None


def test_a_restart_in_mid_batch_makes_no_wrong_verdict_and_a_key_is_needed(
    environment, tmp_path, connect, monkeypatch
):
    with serving(environment, tmp_path / "keyed", repls=2, key="secret") as keyed:
        monkeypatch.delenv("LEAN_SERVER_API_KEY", raising=False)
        with pytest.raises(UserError, match=r"Missing API key.*set LEAN_SERVER_API_KEY .*none is set"):
            connect(keyed.url).healthy()
        monkeypatch.setenv("LEAN_SERVER_API_KEY", "wrong")
        verifier = connect(keyed.url)
        for ask in (verifier.healthy, partial(result, verifier, PROOF)):
            with pytest.raises(UserError, match=r"Invalid API key.*set LEAN_SERVER_API_KEY .*was sent one"):
                ask()
        monkeypatch.setenv("LEAN_SERVER_API_KEY", "secret")
        verifier = connect(keyed.url)
        futures = [verifier.submit(c) for c in mixed(40, "restart")]
        next(f for f in futures if f.result(timeout=WAIT_S).verdict is Verdict.PROVED)
        keyed.stop()
        keyed.start()
        for i, future in enumerate(futures):
            assert future.result(timeout=WAIT_S).verdict in (EXPECTED[i % 5], Verdict.UNKNOWN)
        assert verifier.healthy() is None
        assert result(verifier, f"{PROOF} -- after").verdict is Verdict.PROVED


# --- several servers ----------------------------------------------------------------------------


def nowhere() -> str:
    """An address where nobody listens."""
    listener = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    listener.server_close()
    return f"http://127.0.0.1:{listener.server_port}"


def test_a_dead_server_costs_no_verdict_where_there_is_another(connect, server):
    verifier = connect(nowhere(), server.url)
    assert ask_all(verifier, 40, "two") == 0
    assert verifier.healthy() is None


def test_requests_in_flight_stay_within_the_slots_and_are_spread(server, connect):
    proxies = [FaultyProxy(server.port) for _ in range(2)]
    try:
        verifier = connect(*(p.url for p in proxies), slots=1)
        assert ask_all(verifier, 40, "spread") == 0
        assert [p.most for p in proxies] == [1, 1]
        assert min(p._count for p in proxies) >= 8  # of 32 that reach Lean
    finally:
        for p in proxies:
            p.close()


# --- bad input ----------------------------------------------------------------------------------


def settings(backend: typing.Literal["auto", "kimina"], *servers: str) -> LeanConfig:
    return LeanConfig(
        backend=backend,
        servers=list(servers) or None,
        server_slots=2,
        project=None,
        repl=None,
        recycle_after=1,
        workers=1,
        batch_size=1,
        timeout_s=60.0,
        memory_mb=512,
        max_output_bytes=400_000,
        cache_entries=0,
        retry_s=1.0,
    )


def test_no_server_is_an_error_that_says_what_was_tried(monkeypatch):
    monkeypatch.delenv("LEAN_SERVER_API_URL", raising=False)
    with pytest.raises(UserError, match=r"lean.backend=kimina: set lean.servers or LEAN_SERVER_API_URL"):
        make_verifier(settings("kimina"))
    dead = nowhere()
    with pytest.raises(
        UserError, match=rf"no Kimina server answers \({dead}: ConnectError.*set lean.servers"
    ):
        make_verifier(settings("kimina", dead))
    with pytest.raises(UserError, match=r"'localhost:8000' is no address; one looks like http://"):
        make_verifier(settings("kimina", "localhost:8000"))


class Web(BaseHTTPRequestHandler):
    """A web server that knows nothing of Lean."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_a_server_of_another_protocol_is_an_error():
    web = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        with pytest.raises(UserError, match=r"is no Kimina server: it says '<html>welcome"):
            make_verifier(settings("kimina", f"http://127.0.0.1:{web.server_port}"))
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def test_a_server_that_takes_other_requests_is_an_error_at_once(proxy, connect):
    verifier = connect(proxy.url)
    proxy.fault = "422"
    for ask in (verifier.healthy, partial(result, verifier, PROOF)):
        with pytest.raises(UserError, match=r"another protocol: set lean.servers"):
            ask()


def test_auto_takes_the_first_that_answers_and_says_what_it_passed_over(server, monkeypatch):
    said: list[str] = []
    monkeypatch.setenv("LEAN_SERVER_API_URL", server.url)
    verifier = make_verifier(settings("auto"), said.append)
    verifier.close()
    assert (verifier.name, said) == (f"kimina at {server.url}", [])
    monkeypatch.setenv("LEAN_SERVER_API_URL", nowhere())
    verifier = make_verifier(settings("auto"), said.append)
    verifier.close()
    assert verifier.name == "embedded"
    assert len(said) == 1
    assert said[0].startswith("Lean: passed over kimina: no Kimina server answers (")


# --- life and death -----------------------------------------------------------------------------


def test_close_resolves_everything_and_frees_the_server(connect, server):
    verifier = connect(server.url)
    futures = [verifier.submit(check(f"{ENDLESS_PROOF} -- {i}", ENDLESS)) for i in range(6)]
    time.sleep(0.5)
    verifier.close()
    assert [f.result(timeout=1).verdict for f in futures] == [Verdict.UNKNOWN] * 6
    assert not verifier._thread.is_alive()
    assert result(verifier, PROOF).rule == "the verifier was closed"
    verifier.close()
    assert result(connect(server.url), f"{PROOF} -- next").verdict is Verdict.PROVED


def test_a_cancelled_check_is_not_asked_and_disturbs_nobody(proxy, connect):
    verifier = connect(proxy.url)
    futures = [verifier.submit(check(f"{PROOF} -- cancel {i}")) for i in range(12)]
    cancelled = [f for f in futures[4:] if f.cancel()]
    assert {f.result(timeout=WAIT_S).verdict for f in futures if f not in cancelled} == {Verdict.PROVED}
    assert len(cancelled) >= 4
    assert proxy._count < 12


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_of_ours_reaches_whoever_waits(connect, server, monkeypatch):
    verifier = connect(server.url)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(kimina, "assemble", broken)
    with pytest.raises(ExceptionGroup, match="unhandled"):
        result(verifier, f"{PROOF} -- defect")
