"""Ends that come from outside: a signal that asks the run to stop, and ranks that hang."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


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
