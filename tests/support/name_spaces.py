"""Whether this process may make network name spaces: tests that need them are skipped where not."""

import os
import shutil

import pytest

from cutset.errors import UsageError
from cutset.tools.bench.cluster.emulated_cluster import EmulatedCluster

RATE = 12.5e6  # 100 Mbit/s


def lacking() -> str:
    """Why no name space can be made here; empty where one can be."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "name spaces need root and iproute2"
    try:
        with EmulatedCluster(1, rate=RATE):
            return ""
    except UsageError as error:
        return error.facts


needs_namespaces = pytest.mark.skipif(bool(lacking()), reason=lacking() or "there are name spaces")
