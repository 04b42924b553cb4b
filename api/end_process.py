"""`end_process`: how the programs of this package end, without taking their memory apart first."""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End this process as the interpreter would, but leave its memory to the system.

    The interpreter frees every object of torch's modules one by one, which takes a fork some tenths of a second of a
    CPU, and gives it a copy of each page that it has shared until then. What is due at an end is done: threads are
    waited for, functions of `atexit` called, what was printed is written.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its forks
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whose reader has ended, or who is closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what code in C has printed
    os._exit(code)
