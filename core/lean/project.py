"""A Lake project on this machine: where its Lean is, which version, what it can import."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError

LAKE_TIMEOUT_S = 300.0  # the first `lake env` elaborates the lakefile, and elan may fetch a toolchain
KEPT = ("LEAN_PATH", "LEAN_SYSROOT", "LD_LIBRARY_PATH")  # of Lake's environment, all that Lean needs
OPTIONS = (
    "-DmaxErrors=0",  # since 4.24; its default stops at 100 and leaves the rest looking untouched
    "-DElab.async=false",  # since 4.19; the kernel's answer before the next command
)


@dataclass(frozen=True)
class LakeProject:
    """`environment` is what Lean gets, `options` those of OPTIONS that this Lean knows."""

    folder: Path
    lean: Path
    version: str
    environment: dict[str, str]
    options: tuple[str, ...]

    @property
    def libraries(self) -> list[Path]:
        """Folders of compiled modules."""
        paths = self.environment.get("LEAN_PATH", "").split(os.pathsep)
        return [Path(p) for p in paths if p] + [self.lean.parents[1] / "lib" / "lean"]

    @property
    def readable(self) -> list[str]:
        """What Lean may read beside the system: toolchain, project and the folders that Lake names."""
        paths = [p for v in self.environment.values() for p in v.split(os.pathsep) if p]
        return sorted({str(self.lean.parents[1]), str(self.folder), *paths})

    def has(self, module: str) -> bool:
        """Whether `module` is compiled."""
        file = Path(*module.split(".")).with_suffix(".olean")
        return any((library / file).is_file() for library in self.libraries)


def open_project(folder: Path) -> LakeProject:
    """Ask Lake and Lean about the project. Raises UserError that says what was tried and what to set."""
    folder = folder.expanduser().resolve()
    if not any((folder / name).is_file() for name in ("lakefile.lean", "lakefile.toml")):
        raise UserError(f"lean.project={folder}: no Lake project (no lakefile.lean, no lakefile.toml)")
    lake = shutil.which("lake") or shutil.which("lake", path=Path.home() / ".elan" / "bin")
    if lake is None:
        raise UserError(
            f"lean.project={folder}: no `lake` on PATH nor in ~/.elan/bin; install Lean with elan and put "
            "its bin folder on PATH, or set lean.backend to kimina or embedded"
        )
    variables = _run(folder, [lake, "env", "printenv", "-0"]).split("\0")
    environment = dict(v.split("=", 1) for v in variables if v.startswith(KEPT))
    lean = Path(_run(folder, [lake, "env", "lean", "--print-prefix"]).strip()) / "bin" / "lean"
    version = _run(folder, [lake, "env", "lean", "--version"]).strip()
    wanted = folder / "lean-toolchain"
    if wanted.is_file() and (mismatch := _mismatch(wanted.read_text(encoding="utf-8").strip(), version)):
        raise UserError(f"lean.project={folder}: {mismatch}")
    options = tuple(option for option in OPTIONS if _knows(folder, [lake, "env", "lean"], option))
    return LakeProject(folder, lean, version, environment, options)


def _run(folder: Path, command: list[str]) -> str:
    """What `command` prints in `folder`."""
    tried = f"lean.project={folder}: `{' '.join(command)}`"
    try:
        run = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LAKE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{tried} does not run: {error}") from error
    if run.returncode != 0:
        said = (
            [line for line in run.stderr.splitlines() if "error" in line]
            or run.stderr.splitlines()
            or ["nothing"]
        )
        raise UserError(
            f"{tried} ended with code {run.returncode} and said: {said[0].strip()}. Make it work in that "
            "folder first (`elan show`, `lake build`)"
        )
    return run.stdout


def _mismatch(wanted: str, version: str) -> str | None:
    """What is wrong if `version`, as Lean tells it, is not the toolchain that the project asks for."""
    number = re.search(r"v?(\d+\.\d+\.\d+\S*)$", wanted)
    found = re.search(r"version ([^\s,)]+)", version)
    if number is None or (found is not None and found[1] == number[1]):
        return None
    return (
        f"its lean-toolchain asks for {wanted}, and `lean` there is {version}, which cannot read its "
        "compiled files. Unset ELAN_TOOLCHAIN or an `elan override`, or put elan's bin folder first on PATH"
    )


def _knows(folder: Path, lean: list[str], option: str) -> bool:
    command = [*lean, option, "--stdin"]
    run = subprocess.run(
        command, cwd=folder, input="", capture_output=True, text=True, timeout=LAKE_TIMEOUT_S
    )
    return run.returncode == 0
