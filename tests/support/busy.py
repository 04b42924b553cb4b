"""Limits of time for tests, which must hold on a quiet machine and may not fail on a busy one."""

import os

from cutset.runtime.hosts.versions import read_cores


def stretch(quiet_s: float) -> float:
    """A limit in seconds for this machine as busy as it is: longer by the number of processes that want each core."""
    return quiet_s * max(1.0, 2 * max(os.getloadavg()[0], 1.0) / read_cores())
