"""Starts what the first roles of a run are forks of, while the run is still loaded and planned.

It imports torch, which takes as long as it does in this process, on another core. So this module imports little itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ...runtime.hosts.host import LocalHost
from ..config.run_config import RunConfig

ROLES = "cutset.tools.training.roles"  # what most roles of a run are in


@contextmanager
def open_early_host(config: RunConfig) -> Iterator[LocalHost | None]:
    """Open this machine as the host of a run; None where its roles are on others."""
    if config.on is not None:
        yield None
        return
    with LocalHost() as host:
        for threads in list_first_threads(config, host.cores):
            host.prepare(threads, ROLES)
        yield host


def list_first_threads(config: RunConfig, cores: int) -> list[int]:
    """Return how many threads the roles have that start first, as far as the options of a run say it.

    These are the process that trains alone, with all cores, or else the shards and workers. What starts later takes no
    core from it meanwhile.
    """
    if config.trains_alone:
        return [cores]
    shards, workers = 1, max(1, config.plan_request.processes)  # a number that cannot be is refused by the planner
    return sorted({shards} if config.placement is not None else {shards, max(1, cores // workers)})
