"""Runs a machine's own Lean on one text after another, each in a jail: the local backend's sandbox.

Standard library only; started as `python -S -P -m core.lean.jail SETTINGS` with an empty environment. It
reads one JSON object a line from stdin (`imports`, `text`, `timeout_s`) and answers each with one line, in
the form of zygote.py's `as_answer`. Lean can open no socket, sees of the disk only what it needs to read and
a private folder that is deleted behind it, and can signal nobody outside (Landlock, where the kernel has it).
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import struct
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from core.lean.zygote import MIB, as_answer, end_child, fork_child, guard, read_until_end, run_child

SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # audit's name of the machine, socket()
IO_URING_SETUP, FOREIGN = 425, 0x40000000  # another way to sockets; x32's system calls
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls, on every architecture
READ, EVERYTHING = 0b1101, (1 << 16) - 1  # execute, read file, read folder; all rights on files
FILE_RIGHTS = 0xC007  # those that a file has: execute, write, read, truncate, ioctl
KNOWN_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights by Landlock's version; 16 from 5 on
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom")
MAPPED_MB = 16 * 1024  # address space for Mathlib's files, which are mapped and not counted as memory
FILE_MB, PROCESSES = 1, 64


def forbid_sockets(libc):
    """Let neither this process nor what it starts open a socket, of any kind. Returns whether it is so."""
    machine, socket = SOCKET.get(os.uname().machine, (0, 0))
    load, equal, at_least, give = (
        0x20,
        0x15,
        0x35,
        0x06,
    )  # of a filter program: code, if true, if false, value
    program = (
        *((load, 0, 0, 4), (equal, 0, 4, machine)),
        *((load, 0, 0, 0), (at_least, 2, 0, FOREIGN), (equal, 1, 0, socket), (equal, 0, 1, IO_URING_SETUP)),
        *((give, 0, 0, 0x50000 | errno.EPERM), (give, 0, 0, 0x7FFF0000)),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    return libc.prctl(22, 2, struct.pack("<H6xQ", len(program), ctypes.addressof(code)), 0, 0) == 0


def confine(libc, readable, writable):
    """Leave this process and all it starts these folders and no others, no TCP, no signals to the outside.
    Returns whether the kernel can."""
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = (1 << KNOWN_RIGHTS.get(version, 16)) - 1
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(CREATE_RULESET, struct.pack("<QQQ", rights, 0b11, 0b11)[:size], size, 0)
    for path, access in [(p, READ) for p in readable] + [(p, EVERYTHING) for p in writable]:
        with contextlib.suppress(FileNotFoundError):
            at = os.open(path, os.O_PATH)
            access &= rights if os.path.isdir(path) else rights & FILE_RIGHTS
            libc.syscall(ADD_RULE, ruleset, 1, struct.pack("<Qi", access, at), 0)
            os.close(at)
    confined = libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return confined


def family(pid):
    """`pid` and all its descendants."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError, ValueError):
            pids += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return pids


def private_mb(members):
    """Memory of these processes that is theirs alone: files that are only mapped do not count."""
    pages = 0
    for member in members:
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{member}/statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * resource.getpagesize() / MIB


def cpu_seconds(pid):
    """Processor time of `pid`, its descendants, and those of them that have ended."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Jail:
    """Starts Lean for each text anew; `settings` are those of `sandbox.start_jail`."""

    def __init__(self, settings):
        self.libc, self.isolated, unreachable = guard(settings["parent"])
        self.no_network = forbid_sockets(self.libc) or unreachable
        self.settings, self.memory_mb = settings, settings["memory_mb"]

    def enter(self, folder, cpu_s):
        """Become Lean; returns only if its executable cannot be started."""
        os.chdir(folder)
        limits = [
            (resource.RLIMIT_AS, (MAPPED_MB + self.memory_mb) * MIB),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_FSIZE, FILE_MB * MIB),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 1024),
        ]
        if self.isolated:  # outside a namespace of our own it would count all processes of the user
            limits.append((resource.RLIMIT_NPROC, PROCESSES))  # does not bind root: `stop` counts as well
        for what, limit in limits:
            resource.setrlimit(what, (limit, limit))
        confine(self.libc, [*SYSTEM, *self.settings["readable"]], [folder, "/dev/null"])
        command = self.settings["command"]
        os.execve(command[0], command, self.settings["environment"] | {"HOME": folder, "TMPDIR": folder})

    def folder(self):
        return tempfile.TemporaryDirectory(dir=self.settings["scratch"], ignore_cleanup_errors=True)

    def stop(self, child, output):
        members = family(os.getpid())[1:]  # the child, what it started, and what that left to us
        if len(members) > PROCESSES:
            return "processes"
        return "memory" if private_mb(members) > self.memory_mb else ""

    def check(self, imports, text, timeout_s):
        """How Lean ended on `imports` and `text`, and what it wrote."""
        with self.folder() as folder:
            cpu_s = 2 * int(timeout_s) + 2  # the wall clock comes first; this is for when nobody watches
            main = partial(self.enter, folder, cpu_s)
            most = self.settings["max_output_bytes"]
            return run_child(self.libc, imports + text, timeout_s, most, main, self.stop)


class ReplJail(Jail):
    """Keeps a community REPL that has read the imports, and asks it one text after another.

    It is replaced after `recycle_after` texts, for other imports, and after anything but a clean answer.
    """

    child, imports, used = 0, "", 0

    def check(self, imports, text, timeout_s):
        if self.child and (imports != self.imports or self.used >= self.settings["recycle_after"]):
            self.end()
        if not self.child:
            self.start()
            answer = self.ask({"cmd": imports or "-- no imports"}, self.settings["start_timeout_s"])
            if not clean(answer):
                if self.child:
                    self.end()
                return answer | {"why": "start"}
            self.imports, self.used = imports, 0
        self.used += 1
        return self.ask({"cmd": text, "env": 0}, timeout_s)

    def start(self):
        self.private = self.folder()
        stdin, out, err = os.pipe(), os.pipe(), os.pipe()
        main = partial(self.enter, self.private.name, resource.RLIM_INFINITY)
        self.child = fork_child(self.libc, (stdin[0], out[1], err[1]), main)
        for descriptor in (stdin[0], out[1], err[1]):
            os.close(descriptor)
        self.stdin, self.pipes = stdin[1], (out[0], err[0])
        os.set_blocking(self.stdin, False)

    def ask(self, command, timeout_s):
        start, before = time.monotonic(), cpu_seconds(self.child)
        question = json.dumps(command).encode() + b"\n\n"
        early, _, _ = select.select(self.pipes[:1], [], [], 0)  # an answer before the question is forged
        why = "forged" if early else ""
        output, errors, status = b"", b"", 0
        try:
            while question and not why:
                writable = select.select([], [self.stdin], [], max(start + timeout_s - time.monotonic(), 0))[
                    1
                ]
                why = "" if writable else "timeout"
                question = question[os.write(self.stdin, question) :] if writable else question
        except BrokenPipeError:
            question = b""
        if not why:
            most = self.settings["max_output_bytes"]
            output, errors, why = read_until_end(self.child, self.pipes, start + timeout_s, most, self.stop)
        cpu = cpu_seconds(self.child) - before
        if why != "answered":
            status = self.end()
        why = why.removeprefix("answered")
        return as_answer(why, status, time.monotonic() - start, cpu, output, errors)

    def stop(self, child, output):
        return "answered" if output.endswith(b"\n\n") else super().stop(child, output)

    def end(self):
        """Kill the REPL and delete its folder; how it ended."""
        status, _ = end_child(self.child, kill=True)
        for descriptor in (self.stdin, *self.pipes):
            os.close(descriptor)
        self.private.cleanup()
        self.child = 0
        return status


def clean(answer):
    """Whether a REPL has read the imports: one object with an environment and no error."""
    try:
        said = json.loads(answer["output"])
    except json.JSONDecodeError:
        return False
    errors = any(message["severity"] == "error" for message in said.get("messages", ()))
    return said.get("env") == 0 and not errors


def main():
    settings = json.loads(sys.argv[1])
    jail = (ReplJail if settings["repl"] else Jail)(settings)
    trial = os.fork()
    if trial == 0:
        os._exit(0 if confine(jail.libc, [], []) else 1)
    confined = os.waitpid(trial, 0)[1] == 0
    print(json.dumps({"no_network": jail.no_network, "confined": confined}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = jail.check(request["imports"], request["text"], request["timeout_s"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
