"""Kills, fills and damages real runs, and compares what they leave with a run that was left alone.

    python benchmarks/survival.py                    # all of it, small
    python benchmarks/survival.py kills --count 20   # SIGKILL in generation, verification, backward, saving
    python benchmarks/survival.py lean --count 10    # SIGKILL to the embedded Lean
    python benchmarks/survival.py disk               # the run's disk is full for a while (tmpfs; needs root)
    python benchmarks/survival.py torn --count 5     # the newest checkpoint truncated at a random byte
    python benchmarks/survival.py long --steps 2000  # memory, open files, processes, threads over a long run

The runs are the golden run of drgrpo_tiny with fewer prompts and more steps. Equal means: metrics.jsonl line
by line and number by number (wall times aside), outcomes.jsonl, the policy, and every rollout (Lean's seconds
and raw messages aside).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.golden.golden import golden_command, read_metrics

NOT_COMPARED = ("lean_seconds", "lean_raw")  # raw messages name pieces of a file at random, against cheats
PATIENCE_S = 1800  # for a whole run on a busy machine
PHASES = ("generation", "verification", "backward", "saving")
SMALL: dict[str, Any] = {
    "rollout__prompts": 2,
    "loss__prompts_per_update": 1,
    "evaluate__every": 5,
    "evaluate__problems": 2,
}
# Processes fork from one that has imported everything already: a start costs a tenth of a second, not ten.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["experiments.drgrpo_tiny.train", "transformers.models.qwen3.modeling_qwen3"])


def start_ranks(count: int, target: Callable[..., None], *arguments: Any) -> list[Any]:
    """`target(*arguments)` in `count` processes that are ranks of one process group to be."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = []
    for rank in range(count):
        environment = place | {"WORLD_SIZE": str(count), "RANK": str(rank)}
        ranks.append(FORK.Process(target=as_rank, args=(environment, target, arguments)))
        ranks[-1].start()
    return ranks


def as_rank(environment: dict[str, str], target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    os.environ.update(environment)
    target(*arguments)


def run_script(arguments: list[str], log: str, stacks: str) -> None:
    """Run a script as a process of its own would; on SIGUSR1 it writes where it is, for aimed kills."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=open(stacks, "a"), all_threads=False)  # noqa: SIM115
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def phase(stack: str) -> str:
    """Which part of the loop a stack, innermost frame first, belongs to."""
    for line in stack.splitlines():
        for name, pattern in (
            ("saving", r"core/checkpoint\.py"),
            ("backward", r"in backward$"),
            ("generation", r"core/rollout/"),
            ("verification", r"core/(rewards|lean/\w+)\.py"),
        ):
            if re.search(pattern, line.replace('"', "")):
                return name
    return "elsewhere"


class LiveRun:
    """A run under way in processes of its own, a process a rank."""

    def __init__(self, folder: Path, logs: Path | None = None, processes: int = 1, **overrides: Any) -> None:
        self.folder = folder
        self.stacks, self.log = (
            (logs or folder.parent) / f"{folder.name}.{end}" for end in ("stacks", "log")
        )
        self.stacks.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        command = golden_command("drgrpo_tiny", folder, **overrides)[1:]
        self.ranks = start_ranks(processes, run_script, command, str(self.log), str(self.stacks))
        self.process = self.ranks[0]

    @property
    def alive(self) -> bool:
        return any(process.is_alive() for process in self.ranks)

    def send(self, number: int) -> None:
        """A signal to every rank."""
        for process in self.ranks:
            os.kill(process.pid or 0, number)

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.join()

    def said(self, pattern: str) -> bool:
        return self.log.exists() and re.search(pattern, self.log.read_text(errors="replace")) is not None

    def wait_for(self, pattern: str) -> bool:
        """Return when the run has printed `pattern` (True) or ended (False)."""
        while self.alive:
            if self.said(pattern):
                return True
            time.sleep(0.05)
        return self.said(pattern)

    def reach(self, step: int) -> bool:
        """Return when the run has done `step` steps (True) or ended (False)."""
        while self.alive:
            text = self.log.read_text(errors="replace") if self.log.exists() else ""
            done = [int(number) for number in re.findall(r"(?:resumed after|^)\s*step +(\d+) ", text, re.M)]
            if done and max(done) >= step:
                return True
            time.sleep(0.05)
        return False

    def where(self) -> str:
        """The phase its main thread is in now."""
        before = self.stacks.stat().st_size
        os.kill(self.process.pid or 0, signal.SIGUSR1)
        for _ in range(100):
            time.sleep(0.005)
            text = self.stacks.read_text(errors="replace")[before:]
            if text.endswith("\n") and ("<module>" in text or not self.alive):
                return phase(text)
        return "elsewhere"

    def kill_in(self, wanted: str, timeout_s: float) -> str | None:
        """SIGKILL in the phase `wanted`, or after `timeout_s`; where it was, None if it has ended."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            at = self.where()
            if at == wanted or time.monotonic() > deadline:
                self.kill()
                return at
            time.sleep(0.01)
        return None

    def end(self) -> None:
        """Let it come to its end, which must be a good one."""
        for process in self.ranks:
            process.join(PATIENCE_S)
        codes = [process.exitcode for process in self.ranks]
        assert not any(codes), f"exit codes {codes}: {self.log.read_text(errors='replace')[-3000:]}"


STARTED = r"resumed after step|begins again|held out"


def whole_run(folder: Path, **overrides: Any) -> Path:
    """A run to its end, resumed if the folder holds a part of it, left as it is if it holds all of it."""
    if not (folder / "run.json").exists() or "finished" not in (folder / "run.json").read_text():
        LiveRun(folder, **overrides).end()
    return folder


def differences(found: Path, expected: Path) -> list[str]:
    """What differs between two finished runs, wall times aside."""
    wrong = []
    lines, wanted = read_metrics(found), read_metrics(expected)
    # as text: NaN is equal to itself, and 0.1 to nothing but 0.1
    if (texts := [json.dumps(one) for one in lines]) != [json.dumps(one) for one in wanted]:
        wrong.append(f"metrics.jsonl: {len(texts)} lines for {len(wanted)}")
    if (found / "outcomes.jsonl").read_bytes() != (expected / "outcomes.jsonl").read_bytes():
        wrong.append("outcomes.jsonl")
    names = [sorted(file.name for file in (one / "rollouts").iterdir()) for one in (found, expected)]
    if names[0] != names[1]:
        wrong.append(f"rollouts: {set(names[0]) ^ set(names[1])}")
    else:
        for name in names[0]:
            rows = [pd.read_parquet(one / "rollouts" / name) for one in (found, expected)]
            first, second = (table.drop(columns=list(NOT_COMPARED)) for table in rows)
            if not first.equals(second):
                wrong.append(f"rollouts/{name}")
    weights = [next(one.glob("policies/*/model.safetensors")) for one in (found, expected)]
    if weights[0].read_bytes() != weights[1].read_bytes():
        wrong.append("the policy")
    return wrong


def check(found: Path, expected: Path) -> None:
    wrong = differences(found, expected)
    assert not wrong, f"{found} differs from {expected}: {wrong}"
    print(
        f"  {len(read_metrics(found))} lines of metrics equal to those of the run that was left alone",
        flush=True,
    )


def kills(work: Path, count: int, steps: int, seed: int = 0, **overrides: Any) -> Counter[str]:
    """Kill a run `count` times, each phase in its turn, then let it end; where it was killed."""
    settings: dict[str, Any] = SMALL | {"run__steps": steps} | overrides
    reference = whole_run(work / "reference", **settings)
    dice, places, folder = random.Random(seed), Counter[str](), work / "killed"
    seconds = sum(
        value
        for line in map(json.loads, (reference / "metrics.jsonl").read_text().splitlines())
        for name, value in line.items()
        if name.startswith("seconds/")
    )
    while (done := sum(places.values())) < count:
        run = LiveRun(folder, **settings)
        if run.reach(done * (steps - 1) // count):  # spread over the run
            time.sleep(dice.uniform(0, seconds / steps))
        at = run.kill_in(PHASES[done % len(PHASES)], timeout_s=6 * seconds / steps)
        if at is None:
            run.end()
            check(folder, reference)  # it ended before all kills were given: once more from the beginning
            shutil.rmtree(folder)
            continue
        places[at] += 1
        lines = folder / "metrics.jsonl"
        step = len(lines.read_text().splitlines()) if lines.exists() else 0
        print(f"  kill {done + 1}: in {at}, {step} lines of metrics written", flush=True)
    check(whole_run(folder, **settings), reference)
    print(f"{count} kills, {steps} steps: {dict(places)}", flush=True)
    return places


def lean(work: Path, count: int, steps: int, seed: int = 0) -> int:
    """Kill the run's Lean processes again and again while it goes on; how many were killed."""
    settings: dict[str, Any] = SMALL | {"run__steps": steps}
    reference = whole_run(work / "reference", **settings)
    dice, run, killed = random.Random(seed), LiveRun(work / "lean", **settings), 0
    run.wait_for("Lean: embedded")  # before that its canaries fail, and the run does not begin
    while run.alive:
        time.sleep(dice.uniform(0.5, 4))
        zygotes = []
        for child in psutil.Process(run.process.pid).children(recursive=True) if run.alive else []:
            try:
                zygotes += [child] if "zygote.py" in " ".join(child.cmdline()) else []
            except psutil.Error:
                continue
        if zygotes and killed < count:
            try:
                dice.choice(zygotes).kill()
                killed += 1
            except psutil.NoSuchProcess:
                continue
    run.end()
    check(run.folder, reference)
    print(f"{killed} Lean processes killed under the run, {steps} steps", flush=True)
    return killed


def disk(work: Path, steps: int) -> None:
    """Fill the run's disk, free it while the run goes on; fill it again, and kill the run meanwhile."""
    settings: dict[str, Any] = SMALL | {"run__steps": steps, "run__keep_last": 1}
    reference = whole_run(work / "reference", **settings)
    small = work / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(small)], check=True)
    try:
        run = LiveRun(small / "run", work, **settings)
        ballast = small / "ballast"
        for fatal, started in ((False, "step    2 "), (True, "resumed after step")):
            assert run.wait_for(started), run.log.read_text()
            fill(ballast)
            assert run.wait_for("WARNING"), "a full disk is told"
            print(f"  disk full: {re.findall('WARNING.*', run.log.read_text())[0]}", flush=True)
            time.sleep(3)
            assert run.alive, "a full disk does not end the run"
            if fatal:
                run.kill()
            ballast.unlink()
            if not fatal:
                assert run.wait_for("step    4 "), run.log.read_text()
                run.kill()
            run = LiveRun(small / "run", work, **settings)
        run.end()
        check(run.folder, reference)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def fill(ballast: Path) -> None:
    """Write until the disk takes no more."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


def torn(work: Path, count: int, steps: int, seed: int = 0) -> None:
    """Truncate a file of the newest checkpoint at a random byte, `count` times, and resume each time."""
    settings: dict[str, Any] = SMALL | {"run__steps": steps}
    reference = whole_run(work / "reference", **settings)
    dice, folder = random.Random(seed), work / "torn"
    run = LiveRun(folder, **settings)
    for number in range(count):
        run.wait_for(f"step +{number + 2} ")
        run.kill()
        *_, newest = sorted(path for path in (folder / "checkpoints").iterdir() if not path.suffix)
        file = dice.choice(sorted(newest.iterdir()))
        at = dice.randrange(file.stat().st_size)
        os.truncate(file, at)
        run = LiveRun(folder, **settings)
        assert run.wait_for("torn or corrupt"), run.log.read_text()
        assert run.wait_for("resumed after step"), run.log.read_text()
        print(f"  {newest.name}/{file.name} cut at byte {at:,}: the one before was taken", flush=True)
    run.end()
    check(folder, reference)


def long(work: Path, steps: int, limit_s: float) -> list[tuple[int, ...]]:
    """A run of many small steps; rows of step, resident MB, open files, processes, threads as it goes."""
    settings: dict[str, Any] = SMALL | {
        "run__steps": steps,
        "rollout__group_size": 2,
        "rollout__max_new_tokens": 96,
        "run__checkpoint_every": 10,
        "evaluate__every": 0,
        "policy__dtype": "float32",
        "guards__malformed__action": "ignore",  # of four rollouts all may be malformed, steps in a row
    }
    run, rows, end = LiveRun(work / "long", **settings), [], time.monotonic() + limit_s
    run.wait_for("held out")
    while run.alive and time.monotonic() < end:
        step = sum(1 for _ in (run.folder / "metrics.jsonl").open())
        if step >= (rows[-1][0] if rows else 0) + steps // 20:
            family = [psutil.Process(run.process.pid)]
            family += family[0].children(recursive=True)
            memory = sum(one.memory_info().rss for one in family) >> 20
            rows.append((step, memory, family[0].num_fds(), len(family), family[0].num_threads()))
            print(
                "  step {:>5}: {:>5} MB, {} open files, {} processes, {} threads".format(*rows[-1]),
                flush=True,
            )
        time.sleep(0.2)
    if run.alive:
        run.kill()
    else:
        run.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", default="all", choices=["all", "kills", "lean", "disk", "torn", "long"]
    )
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=2400, help="of the long run")
    parser.add_argument("--work", type=Path, help="folder for the runs; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for what in ("kills", "lean", "disk", "torn", "long"):
            if options.what not in ("all", what):
                continue
            print(what, flush=True)
            if what == "kills":
                kills(work, options.count, options.steps)
            elif what == "lean":
                lean(work, options.count, options.steps)
            elif what == "disk":
                disk(work, options.steps)
            elif what == "torn":
                torn(work, options.count, options.steps)
            else:
                long(work, options.steps, options.limit_s)


if __name__ == "__main__":
    main()
