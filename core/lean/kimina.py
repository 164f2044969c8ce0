"""Kimina Lean servers as a verifier: one snippet a request, spread over the servers by their free slots.

An answer is read from the raw JSON for assemble.py's evidence, never for the absence of errors. What says
nothing about the proof (a busy, silent or broken server, a header that times out, another's answer) is asked
again, of another server where there is one, and ends in UNKNOWN. A timeout, a crash or a silence of Lean is
believed when it repeats in a REPL of its own and a known theorem passes right behind it on that server.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import secrets
import sys
import threading
import typing
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
import typing_extensions

from core.errors import UserError
from core.lean.assemble import Doubt, LeanFile, Reading, own_text
from core.lean.intake import PROOF, TRUTH, Intake, Job, run_canaries
from core.lean.snippets import Answer, ServerFault, assemble, goals_before, read_answer, sendable
from core.lean.verdict import LeanCheck, LeanMessage, LeanResult, Verdict

_typed_dict = typing.TypedDict
if sys.version_info < (3, 12):  # where pydantic takes no TypedDict but this one, and the client no other
    typing.TypedDict = typing_extensions.TypedDict
try:
    from kimina_client import AsyncKiminaClient, Infotree, Snippet
finally:
    typing.TypedDict = _typed_dict

MAX_TRIES = 5  # requests about one check before it is given up as UNKNOWN
# Answers in a row that make a verdict. A server does not say who killed a REPL: the proof must do it thrice.
REPEATS = {Verdict.TIMEOUT: 2, Verdict.FAILED: 2, Verdict.CRASHED: 3}
SILENCE_S = 90.0  # beyond imports and proof: a server's own wait for a free REPL (60 by default), and 30
CONNECT_S = 10.0
REST_S = (0.5, 10.0)  # a slot's rest after its first fault, and at most; doubled in between


class Client(AsyncKiminaClient):
    """kimina-client, but status and body survive, and retries are ours."""

    def __init__(self, address: str, read_timeout_s: float) -> None:
        super().__init__(api_url=address)
        timeout = httpx.Timeout(CONNECT_S, read=read_timeout_s, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.session = httpx.AsyncClient(headers=self.headers, timeout=timeout, limits=limits)

    async def _query(self, url: str, payload: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """The response of a server that answered 200 or 500. Raises ServerFault for another failure, and
        UserError for one that no retry mends."""
        try:
            response = await self.session.request(method, url, json=payload)
        except httpx.RequestError as error:
            raise ServerFault(f"{self.api_url}: {type(error).__name__} {error}".rstrip()) from error
        said = f"{self.api_url} answers {response.status_code}: {response.text[:200]}"
        if response.status_code in (401, 403):
            key = "it was sent one" if self.api_key else "none is set"
            raise UserError(f"{said}; set LEAN_SERVER_API_KEY to the server's key ({key})")
        if response.status_code == 422:
            raise UserError(f"{said}; it speaks another protocol: set lean.servers to Kimina Lean servers")
        if response.status_code not in (200, 500):
            raise ServerFault(said)
        return response

    def handle(self, resp: Any, model: type) -> Any:
        """The raw response: the client's models take an empty answer for a proof."""
        return resp


@dataclass(frozen=True, eq=False)
class Server:
    """One address and its client."""

    address: str
    client: Client


@dataclass(eq=False)
class Request(Job):
    """A check on its way; the fields below change with every try."""

    only: Server | None = None
    """Of a canary: the server it is about."""
    avoid: Server | None = None
    """The server that gave no verdict last, if there are others."""
    tries: int = 0
    suspected: Verdict | None = None
    """The verdict that the last answer would mean if it repeats."""
    times: int = 0
    """How often in a row it was suspected."""


class KiminaLean:
    """A Verifier over Kimina Lean servers."""

    def __init__(
        self,
        *,
        servers: Sequence[str],
        slots: int,
        timeout_s: float,
        max_output_bytes: int,
        cache_entries: int,
    ) -> None:
        """At most `slots` requests in flight a server; `timeout_s` of wall clock a proof, and as much for
        its imports. Raises ValueError if no server answers, UserError if one wants another key."""
        for address in servers:
            if not re.fullmatch(r"https?://[^\s/]+(:\d+)?(/\S*)?", address):
                raise ValueError(f"{address!r} is no address; one looks like http://localhost:8000")
        self.name = f"kimina at {', '.join(servers)}"
        self._slots, self._timeout_s = slots, max(1, math.ceil(timeout_s))
        self._max_output_bytes = max_output_bytes
        silence_s = SILENCE_S + 2 * self._timeout_s
        self._servers = [Server(address, Client(address, silence_s)) for address in servers]
        self._intake = Intake("kimina", cache_entries)
        self.counts = self._intake.counts
        self._queue: deque[Request] = deque()
        self._arrived = asyncio.Event()
        self._open: set[Request] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="kimina", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._probe(), self._loop).result()
        except ValueError:
            self.close()
            raise

    # --- the protocol ---------------------------------------------------------------------------

    def submit(self, check: LeanCheck) -> Future[LeanResult]:
        """Queue one check. Raises ValueError if the problem's own statement cannot be split; the future
        raises UserError if the servers want another key or speak another protocol."""
        check = replace(check, problem=sendable(check.problem))
        request = Request(check, own_text(check.code, check.problem), self._intake.key(check))
        if not self._intake.answered(request):
            self._enqueue(request)
        return request.future

    def healthy(self) -> str | None:
        """Check the canaries on every server, before everything that waits. None if at least one server
        passes and none is wrong about any; else what came out wrong."""
        sick = []
        for server in self._servers:
            silence = asyncio.run_coroutine_threadsafe(self._silence(server), self._loop).result()
            if silence:  # a canary would wait out every retry
                sick.append(silence)
                continue
            found = run_canaries(self.name, "import Mathlib", partial(self._ask_canary, server))
            if found and found[1] is not Verdict.UNKNOWN:
                return f"{server.address}: {found[0]}"
            sick += [f"{server.address}: {found[0]}"] if found else []
        return "; ".join(sick) if len(sick) == len(self._servers) else None

    def close(self) -> None:
        """Drop every request; checks that wait or run come back UNKNOWN."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()
        for request in self._open.copy():
            self._intake.unknown(request, "the verifier was closed")

    # --- the queue ------------------------------------------------------------------------------

    def _ask_canary(self, server: Server, check: LeanCheck) -> Future[LeanResult]:
        request = Request(check, check.code, "", only=server)
        self._enqueue(request)
        return request.future

    def _enqueue(self, request: Request) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._open.add(request)
                request.future.add_done_callback(lambda _: self._open.discard(request))
                self._loop.call_soon_threadsafe(self._insert, request)
        if closed:
            self._intake.unknown(request, "the verifier was closed")

    def _insert(self, request: Request) -> None:
        """Canaries and what was begun go first."""
        (self._queue.appendleft if request.only or request.tries else self._queue.append)(request)
        self._arrived.set()

    async def _take(self, server: Server) -> Request:
        while True:
            for request in self._queue:
                if request.only in (None, server) and request.avoid is not server:
                    self._queue.remove(request)
                    return request
            self._arrived.clear()
            await self._arrived.wait()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:  # by close()
            return
        except ExceptionGroup as defects:  # ours: nobody may wait for ever
            with self._lock:
                self._closed = True
            for request in self._open.copy():
                self._intake.fail(request, defects)
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._servers:
                    for _ in range(self._slots):
                        group.create_task(self._work(server))
        finally:
            for server in self._servers:
                await server.client.close()

    async def _probe(self) -> None:
        """Raise ValueError if no server answers at all, for which none needs a REPL."""
        silent = [reason for reason in [await self._silence(server) for server in self._servers] if reason]
        if len(silent) == len(self._servers):
            raise ValueError(
                f"no Kimina server answers ({'; '.join(silent)}); start one, or set lean.servers or "
                "LEAN_SERVER_API_URL to the address of one"
            )

    async def _silence(self, server: Server) -> str | None:
        """Why this is no Kimina server, or none that answers."""
        try:
            answer = await asyncio.wait_for(server.client.health(), CONNECT_S)
        except ServerFault as fault:
            return str(fault)
        except TimeoutError:
            return f"{server.address} says nothing for {CONNECT_S:.0f} s"
        if not answer.text.startswith("{"):
            return f"{server.address} is no Kimina server: it says {answer.text[:80]!r}"
        return None

    async def _work(self, server: Server) -> None:
        """The life of one slot of a server."""
        faults = 0
        while True:
            request = await self._take(server)
            if request.future.done():  # the caller has cancelled it
                self._intake.unknown(request, "cancelled")
                continue
            request.tries += 1
            try:
                result = await self._try(server, request)
                faults = 0
            except UserError as error:
                self._intake.fail(request, error)
                continue
            except ServerFault as fault:
                result, request.suspected, faults = None, None, faults + 1
                if request.tries == MAX_TRIES:
                    result = LeanResult(request.check.id, Verdict.UNKNOWN, (), str(fault), 0.0)
            if result is not None:
                self._intake.resolve(request, result)
            elif len(self._servers) > 1 and request.only is None:
                request.avoid = server
                self._insert(request)
            rest = min(REST_S[0] * 2.0 ** min(faults - 1, 30), REST_S[1]) if faults else 0.0
            await asyncio.sleep(rest * random.uniform(0.5, 1.0))
            if result is None and request.avoid is None:
                self._insert(request)

    # --- one request ----------------------------------------------------------------------------

    async def _try(self, server: Server, request: Request) -> LeanResult | None:
        """Ask once; the result, if it is certain. Raises ServerFault and UserError."""
        check = request.check
        file, text = assemble(check, request.code)
        response, answer = await self._ask(server, file, text, fresh=request.suspected is not None)
        reading, verdict = answer.reading, answer.reading.verdict
        if verdict is not None:
            goals, raw = (), response.text if verdict is Verdict.PROVED else ""
            if verdict is Verdict.FAILED and check.goals:
                goals = await self._goals(server, file, text, reading.messages)
            rule = reading.reason or None
            return LeanResult(check.id, verdict, reading.messages, rule, answer.seconds, goals, raw)
        suspected = answer.suspected
        assert suspected is not None, "a reading without a verdict comes with a suspicion"
        request.times = request.times + 1 if suspected is request.suspected else 1
        request.suspected = suspected
        if request.times < REPEATS[suspected]:
            if request.tries == MAX_TRIES:
                raise ServerFault(reading.reason)
            return None
        canary = replace(TRUTH, header=check.problem.header)
        file, text = assemble(LeanCheck("canary", canary, PROOF), PROOF)
        if (await self._ask(server, file, text, fresh=False))[1].reading.verdict is not Verdict.PROVED:
            raise ServerFault(f"{reading.reason}, but a known theorem does not pass behind it either")
        return LeanResult(check.id, suspected, reading.messages, reading.reason, answer.seconds)

    async def _ask(
        self, server: Server, file: LeanFile, text: str, *, fresh: bool, infotree: Infotree | None = None
    ) -> tuple[httpx.Response, Answer]:
        """Send `text`; `fresh`: to a REPL that has seen no other."""
        id = secrets.token_hex(16)
        response: Any = await server.client.api_check(
            [Snippet(id=id, code=text)], timeout=self._timeout_s, reuse=not fresh, infotree=infotree
        )
        if infotree is None and len(response.content) > self._max_output_bytes:
            reading = Reading(None, (), Doubt.CUT, f"more than {self._max_output_bytes} bytes of messages")
            return response, Answer(reading, Verdict.CRASHED, 0.0)
        return response, read_answer(file, id, response.status_code, response.text)

    async def _goals(
        self, server: Server, file: LeanFile, text: str, messages: Sequence[LeanMessage]
    ) -> tuple[str, ...]:
        """The goals before each error, from a second run of the same text; none if that run fails."""
        before = file.starts[0] + file.pieces[0].code_line - 2
        errors = [(before + m.line, m.column) for m in messages if m.severity == "error"]
        try:
            response, answer = await self._ask(server, file, text, fresh=False, infotree=Infotree.original)
            if answer.reading.verdict is not Verdict.FAILED:
                return ()
            (result,) = response.json()["results"]
            return tuple(goals_before(result["response"]["infotree"], *error) for error in errors)
        except (ServerFault, KeyError, TypeError, AttributeError):
            return ()
