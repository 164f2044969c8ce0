"""A process that holds Lean's libraries and forks one limited child a file: the embedded Lean's sandbox.

Standard library only; started as `python -I -S zygote.py serve …` with an empty environment, so it sees
neither the packages nor the secrets of the trainer. It reads one JSON object a line from stdin (`text`,
`timeout_s`) and answers each with one line: how the child ended and what it wrote.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

LIBRARIES = ("libInit_shared.so", "libleanshared_2.so", "libleanshared_1.so", "libleanshared.so")
LEAN_OPTIONS = (
    "--json",
    "-j1",
    "-s8192",  # KiB of stack a thread; the default reserves much more address space
    "-DElab.async=false",  # messages in order, the kernel's answer before the next command
    "-DmaxErrors=0",  # the default stops at 100 and leaves the rest of a batch looking untouched
    "-DautoImplicit=false",
    "-Dlinter.all=false",
)
MIB = 1 << 20
POLL_S = 0.1  # between two looks at a child that says nothing
SLACK_MB = 128  # address space of a child's first threads and arenas, before the proof asks for any
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def load_lean(shared):
    """Load the libraries in the order their symbols need and return the last, which has `lean_main`."""
    for name in LIBRARIES:
        library = ctypes.CDLL(os.path.join(shared, name), mode=ctypes.RTLD_GLOBAL)
    return library


def lean_main(library, arguments):
    """The `lean` executable: runs it with these arguments and returns its exit code."""
    encoded = [b"lean", *(os.fsencode(argument) for argument in arguments)]
    code = library.lean_main(len(encoded), (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None))
    library.fflush(None)
    return code


def die_with(parent, libc):
    """Have the kernel kill this process when `parent` dies, also if it is dead already."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def child_processes(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def kill_session(child):
    """Kill the child and its process group; it leads one as soon as it has run its first line."""
    os.kill(child, signal.SIGKILL)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def limit_child(timeout_s, memory_mb, isolated):
    """Limits that the child cannot lift again. Address space is what it has now plus `memory_mb`."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    cpu_s = 2 * int(timeout_s) + 2  # the wall clock comes first; this is for when nobody watches
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    for what, limit in (
        (resource.RLIMIT_AS, mapped + (SLACK_MB + memory_mb) * MIB),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        resource.setrlimit(what, (limit, limit))
    if isolated:  # outside a namespace of our own it would count all processes of the user
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))


def read_until_end(child, pipes, deadline, max_bytes, stop):
    """Read both pipes until the child ends, the deadline passes, there is too much output, or `stop`, asked
    with the child and the first output, gives a reason. Returns the two outputs and "", "timeout", "output"
    or that reason."""
    outputs = {pipe: bytearray() for pipe in pipes}
    ended = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (*pipes, ended):
        poll.register(descriptor, select.POLLIN)
    why, open_pipes, running = "", set(pipes), True
    while running and not why:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            why = "timeout"
            break
        ready = {descriptor for descriptor, _ in poll.poll(1000 * min(remaining, POLL_S))}
        running = ended not in ready
        while pipes_ready := ready & open_pipes:
            for pipe in pipes_ready:
                data = os.read(pipe, 1 << 16)
                outputs[pipe] += data
                if not data:
                    open_pipes.discard(pipe)
                    poll.unregister(pipe)
            if sum(map(len, outputs.values())) > max_bytes:
                os.close(ended)
                return *outputs.values(), "output"
            # after the child's end, what it had written is still to be read
            ready = set() if running else {descriptor for descriptor, _ in poll.poll(0)}
        if running:
            why = stop(child, outputs[pipes[0]])
    os.close(ended)
    return *outputs.values(), why


def fork_child(libc, streams, main):
    """Fork a child that leads a session of its own, has `streams` as stdin, stdout and stderr and nothing
    else open, dies with us, and ends with the code that `main` returns."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            die_with(parent, libc)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            os.closerange(3, 256)
            code = main()
        finally:
            os._exit(code)
    return child


def end_child(child, kill):
    """Wait for the child, killing it first if told to, and kill whatever it has left running. Returns its
    wait status and resource usage."""
    if kill:
        kill_session(child)
    _, status, usage = os.wait4(child, 0)
    while strays := child_processes(os.getpid()):  # whatever it started falls to us, the subreaper
        for stray in strays:
            os.kill(stray, signal.SIGKILL)
            os.waitpid(stray, 0)
    return status, usage


def run_child(libc, text, timeout_s, max_bytes, main, stop=lambda child, output: ""):
    """Run `main` on `text` in a child; nothing of it is left afterwards. The text is its stdin and lies in
    memory. Returns how the child ended and what it wrote."""
    source = os.memfd_create("check.lean")
    with open(source, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(source, 0, os.SEEK_SET)
    start = time.monotonic()
    out, err = os.pipe(), os.pipe()
    child = fork_child(libc, (source, out[1], err[1]), main)
    for descriptor in (source, out[1], err[1]):
        os.close(descriptor)
    output, errors, why = read_until_end(child, (out[0], err[0]), start + timeout_s, max_bytes, stop)
    status, usage = end_child(child, bool(why))
    os.close(out[0])
    os.close(err[0])
    return as_answer(why, status, time.monotonic() - start, usage.ru_utime + usage.ru_stime, output, errors)


def as_answer(why, status, seconds, cpu_seconds, output, errors):
    """What the trainer is told of a check: `why` it was stopped, if it was, or the signal that ended it."""
    return {
        "why": why,
        "signal": os.WTERMSIG(status) if not why and os.WIFSIGNALED(status) else 0,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "output": output.decode("utf-8", "replace"),
        "errors": errors[-2000:].decode("utf-8", "replace"),
    }


def guard(parent):
    """Have this process die with `parent`, inherit what its children leave, gain no rights and see no
    network. Returns libc, whether users are its own, and whether the network is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    die_with(parent, libc)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    isolated = libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    return libc, isolated, isolated or libc.unshare(CLONE_NEWNET) == 0


def serve(shared, parent, memory_mb, max_bytes):
    libc, isolated, no_network = guard(parent)
    lean = load_lean(shared)
    lean.lean_initialize()  # three quarters of a small check's time, paid once; its threads only wait
    print(json.dumps({"ready": True, "no_network": no_network}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        timeout_s = request["timeout_s"]

        def main(timeout_s=timeout_s):
            limit_child(timeout_s, memory_mb, isolated)
            return lean_main(lean, (*LEAN_OPTIONS, f"-M{memory_mb}", "--stdin"))

        answer = run_child(libc, request["text"], timeout_s, max_bytes, main)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(lean_main(load_lean(sys.argv[2]), sys.argv[3:]))
    serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
