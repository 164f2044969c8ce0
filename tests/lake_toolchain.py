"""A Lean toolchain and a Lake project for tests, over the Lean of the wheel: `lake`, `lean` and two modules.

No package registry has a whole Lean or Mathlib. Here `Init` is our prelude under that name
and `Mathlib` a module with one theorem; the executables run the wheel's Lean 4.35.0 and nothing else of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from core.lean.library import PRELUDE_FILE, locate_library

PYTHON = Path(sys.base_prefix, "bin", "python3")
LEAN = """#!{python} -IS
import ctypes, os, sys
if "--print-prefix" in sys.argv:
    print({toolchain!r})
    sys.exit()
for name in ("libInit_shared.so", "libleanshared_2.so", "libleanshared_1.so", "libleanshared.so"):
    library = ctypes.CDLL(os.path.join({shared!r}, name), mode=ctypes.RTLD_GLOBAL)
arguments = [os.fsencode(a) for a in ["lean", *sys.argv[1:]]]
code = library.lean_main(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None))
library.fflush(None)
os._exit(code)
"""
LAKE = """#!/bin/sh
[ "$1" = env ] && shift || {{ echo "error: unknown command '$1'" >&2; exit 1; }}
export LEAN_SYSROOT={toolchain} LEAN_PATH={built}:{toolchain}/lib/lean LD_LIBRARY_PATH={libraries}
PATH={toolchain}/bin:$PATH exec "$@"
"""
REPL = """#!{python} -IS
import json, os, subprocess, sys
environments, lines = [], []
for line in sys.stdin:
    lines.append(line)
    if line.strip():
        continue
    command, lines = json.loads("".join(lines)), []
    number = command.get("env")
    if number is not None and number >= len(environments):
        print(json.dumps({{"message": "Unknown environment."}}), end="\\n\\n", flush=True)
        continue
    before = environments[number] if number is not None else ""
    text = before + command["cmd"] + "\\n"
    lean = [{lean!r}, "--json", "-DmaxErrors=0", "-DElab.async=false", "--stdin"]
    run = subprocess.run(lean, input=text, capture_output=True, text=True)
    if run.returncode < 0:
        sys.stderr.write(run.stderr)
        sys.stderr.flush()
        os.kill(os.getpid(), -run.returncode)
    messages = [json.loads(line) for line in run.stdout.splitlines()]
    for message in messages:
        for place in filter(None, (message["pos"], message["endPos"])):
            place["line"] -= before.count("\\n")
        message["severity"] = message["severity"].replace("information", "info")
    own = [m for m in messages if m["pos"]["line"] > 0]
    answer = {{"messages": own}} if own else {{}}
    print(json.dumps(answer | {{"env": len(environments)}}, indent=1), end="\\n\\n", flush=True)
    environments.append(text)
"""
MATHLIB = "theorem Mathlib.swap (p q : Prop) (h : And p q) : And q p := ⟨h.right, h.left⟩\n"


@dataclass(frozen=True)
class Toolchain:
    """`bin` goes on PATH; `repl` speaks the community REPL's protocol, every environment a text that is read
    again; `project` has our Mathlib, `bare` is a project without it."""

    bin: Path
    repl: Path
    project: Path
    bare: Path


def executable(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def make_project(folder: Path, version: str = "v4.35.0") -> Path:
    (folder / ".lake" / "build" / "lib" / "lean").mkdir(parents=True)
    (folder / "lakefile.toml").write_text('name = "project"\n')
    (folder / "lean-toolchain").write_text(f"leanprover/lean4:{version}\n")
    return folder


def make_toolchain(folder: Path) -> Toolchain:
    """Write it all below `folder`. `lake` names the folders that the executables read, as a real one does."""
    shared = locate_library().shared
    toolchain, project, bare = folder / "toolchain", folder / "project", folder / "bare"
    lean = executable(
        toolchain / "bin" / "lean",
        LEAN.format(python=PYTHON, toolchain=str(toolchain), shared=str(shared)),
    )
    libraries = f"{shared}:{sys.base_prefix}"
    for made in (project, bare):
        make_project(made)
    built = "$PWD/.lake/build/lib/lean"
    executable(folder / "bin" / "lake", LAKE.format(toolchain=toolchain, built=built, libraries=libraries))
    (toolchain / "lib" / "lean").mkdir(parents=True)
    compile_module(lean, PRELUDE_FILE.read_text(), toolchain / "lib" / "lean" / "Init.olean")
    compile_module(lean, MATHLIB, project / ".lake" / "build" / "lib" / "lean" / "Mathlib.olean")
    repl = executable(folder / "repl" / "repl", REPL.format(python=PYTHON, lean=str(lean)))
    return Toolchain(folder / "bin", repl, project, bare)


def compile_module(lean: Path, source: str, target: Path) -> None:
    file = target.with_suffix(".lean")
    file.write_text(source)
    environment = {"LEAN_PATH": str(lean.parents[1] / "lib" / "lean"), "PATH": os.environ["PATH"]}
    subprocess.run([lean, file, "-o", target], check=True, env=environment, timeout=120, cwd=file.parent)
