"""A process ends as the interpreter would end it, but for its memory."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, ctypes, sys, threading
from cutset.end_process import end_process

class Kept:
    def __del__(self):
        sys.stderr.write("taken apart")

kept = Kept()
asked = threading.Event()
atexit.register(print, "atexit")
threading.Thread(target=lambda: (asked.wait(), sys.stdout.write("thread\\n"))).start()
threading.Timer(0.0, asked.set).start()
ctypes.CDLL(None).printf(b"C\\n")
end_process(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 6])
def test_what_is_due_at_the_end_is_done_and_memory_is_left_alone(code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(code)], capture_output=True, text=True, check=False)
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (code, ["C", "atexit", "thread"], "")
