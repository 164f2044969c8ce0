"""A process of its own that holds Lean's libraries; standard library only, started with `python -I -S`."""

import ctypes
import os
import sys

LIBRARIES = ("libInit_shared.so", "libleanshared_2.so", "libleanshared_1.so", "libleanshared.so")


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


if __name__ == "__main__" and sys.argv[1] == "run":
    sys.exit(lean_main(load_lean(sys.argv[2]), sys.argv[3:]))
