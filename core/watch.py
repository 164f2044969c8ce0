"""Ends that come from outside: a signal that asks the run to stop, and ranks that hang."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

_ROOT = Path(__file__).resolve().parents[1]


class StopSignal:
    """Hears SIGTERM, gives the run `grace_s` seconds to save and return, then ends the process with code 0.

    The signal's number goes through a pipe to a thread, so it is heard even while the main thread waits
    inside a library; what is on the disk by then is whole, whatever the main thread was doing.
    """

    def __init__(self, grace_s: float) -> None:
        self.asked = False
        self._grace_s = grace_s
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._handler = signal.signal(signal.SIGTERM, lambda *_: None)  # without one there is no wake-up
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="stop signal", daemon=True).start()

    def _listen(self) -> None:
        while not self.asked:
            heard = os.read(self._pipe[0], 64)
            if not heard:  # closed
                return os.close(self._pipe[0])
            self.asked = signal.SIGTERM in heard
        print(f"asked to stop: at most {self._grace_s:g} s to finish the step and save it", file=sys.stderr)
        time.sleep(self._grace_s)
        print("the step took too long and is abandoned; the last checkpoint stands", file=sys.stderr)
        sys.stderr.flush()
        os._exit(0)

    def close(self) -> None:
        """Stop listening and give the signal back, unless it has come: then its time runs on."""
        if self.asked:
            return
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGTERM, self._handler)
        os.close(self._pipe[1])


class Watch:
    """Every rank tells the others every few seconds what it does; a rank on which nothing has moved for
    `timeout_s` ends the job, naming for each rank its phase, its line, and whether it waits for the others.

    It speaks through a connection of its own to the store that the ranks met at. torchrun ends the other
    ranks when one ends, and starts all of them again if it was told so (`--max-restarts`).
    """

    BEAT_S = 2.0
    SILENT_S = 15.0  # a rank unheard for so long is stopped, dead or cut off

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._doing, self._since = "start-up", time.monotonic()
        self._heard: list[tuple[float, str]] = [(time.monotonic(), "start-up")] * world_size
        self._silent: set[int] = set()
        self._closed = threading.Event()
        port = int(os.environ["MASTER_PORT"])
        self._store = TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, wait_for_workers=False)
        self._prefix = f"watch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        self._thread = threading.Thread(target=self._beat, name="watch", daemon=True)
        self._thread.start()

    def tick(self, doing: str) -> None:
        """The main thread has got to (or on with) this."""
        self._doing, self._since = doing, time.monotonic()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(self.BEAT_S)  # at the process's exit a call into the store would abort it

    def board(self) -> str:
        """A line a rank: what it was doing when it was last heard."""
        now = time.monotonic()
        return "\n".join(
            f"  rank {rank}: {doing}"
            + (f"; not heard for {now - at:.0f} s" if now - at > self.SILENT_S else "")
            for rank, (at, doing) in enumerate(self._heard)
        )

    def _beat(self) -> None:
        count = 0
        while not self._closed.wait(self.BEAT_S):
            count += 1
            idle = time.monotonic() - self._since
            try:
                self._store.set(f"{self._prefix}/{self._rank}", f"{count} phase {self._doing}, {_where()}")
                self._listen()
            except RuntimeError:  # the store went with the rank or agent that held it
                return
            if idle > self._timeout_s and not self._closed.is_set():
                print(
                    f"nothing has moved on rank {self._rank} for {idle:.0f} s:\n{self.board()}",
                    file=sys.stderr,
                )
                sys.stderr.flush()
                os._exit(1)

    def _listen(self) -> None:
        now = time.monotonic()
        for rank, (at, doing) in enumerate(self._heard):
            key = f"{self._prefix}/{rank}"
            said = self._store.get(key).decode() if self._store.check([key]) else doing
            if said != doing:
                self._heard[rank] = (now, said)
                self._silent.discard(rank)
            elif now - at > self.SILENT_S and rank not in self._silent:
                self._silent.add(rank)
                print(f"rank {rank} was last heard {now - at:.0f} s ago: {doing}", file=sys.stderr)


def _where() -> str:
    """The main thread's innermost line in this repository, and whether it waits there for other ranks."""
    frame, waits = sys._current_frames().get(threading.main_thread().ident or 0), False
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        waits |= "torch/distributed" in str(file)
        if file.is_relative_to(_ROOT) and "site-packages" not in file.parts:
            line = f"{file.relative_to(_ROOT)}:{frame.f_lineno}"
            return f"{line}, waiting for other ranks" if waits else line
        frame = frame.f_back
    return "outside this repository"
