"""`remove_after_end`: a folder goes when the last process that may write there has ended, even if all are killed."""

import os
import subprocess
from pathlib import Path

# A process of its own, small and without the name of what it cleans up after, so that nobody kills it along with that.
_WAIT_AND_REMOVE = ("/bin/sh", "-c", 'trap "" HUP INT TERM; read -r nothing; rm -rf -- "$FOLDER"')


def remove_after_end(folder: Path) -> int:
    """Start a process that removes a folder once all copies of the file that is returned are closed.

    Whoever writes to the folder holds one.
    """
    reading, writing = os.pipe()
    subprocess.Popen(
        _WAIT_AND_REMOVE,
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"FOLDER": str(folder), "PATH": os.environ.get("PATH", os.defpath)},
        start_new_session=True,
    )
    os.close(reading)
    return writing
