"""A proxy between client and server that breaks every n-th request in one chosen way."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading

FAULTS = ("refused", "reset", "429", "500", "502", "slow", "cut", "short", "hang", "html")


def response(status: str, body: bytes, kind: str = "application/json", length: int | None = None) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


class FaultyProxy:
    """Forwards to 127.0.0.1:`port`; `fault` and `every` may be changed at any time."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.fault, self.every = "", 1
        self.hits = 0
        """Requests that were broken."""
        self.most = 0
        """Most requests in flight at once."""
        self._count = self._flying = 0
        self._loop = asyncio.new_event_loop()
        self._listening: asyncio.Server | None = None
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        listener.close()
        self._started = self._loop.create_task(self._listen())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._ready(), self._loop).result(60)

    async def _listen(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _ready(self) -> None:
        await self._started

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        if self._listening is not None:
            self._listening.close()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            fault = ""
            if head.startswith(b"POST"):
                self._count += 1
                fault = self.fault if self._count % self.every == 0 else ""
            self.hits += bool(fault)
            self._flying += 1
            self.most = max(self.most, self._flying)
            try:
                await self._answer(fault, head, body, reader, writer)
            finally:
                self._flying -= 1
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(
        self,
        fault: str,
        head: bytes,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if fault in ("reset", "refused"):
            linger = struct.pack("ii", 1, 0)  # close with a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            if fault == "refused" and self._listening is not None:
                self._listening.close()
                self._listening = None
                await asyncio.sleep(0.3)
                await self._listen()
        elif fault in ("401", "422", "429", "500", "502"):
            writer.write(response(f"{fault} Broken", b'{"detail":"broken on purpose"}'))
        elif fault == "html":
            writer.write(response("200 OK", b"<html>welcome</html>", "text/html"))
        elif fault == "hang":
            await reader.read()
        else:
            if fault == "slow":
                await asyncio.sleep(1.5)
            whole = await self._forward(head, body)
            start = whole.index(b"\r\n\r\n") + 4
            half = whole[start : start + (len(whole) - start) // 2]
            if fault == "cut":
                whole = response("200 OK", half)
            if fault == "short":
                whole = response("200 OK", half, length=2 * len(half))
            writer.write(whole)

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            head = re.sub(rb"\r\nconnection: [^\r]*", b"", head, flags=re.IGNORECASE)
            writer.write(head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body)
            answer = await reader.read()
        finally:
            writer.close()
        if b"\r\n\r\n" not in answer:  # the server died over it
            raise ConnectionResetError
        return answer
