"""The limit on open files (`ulimit -n`): sockets are such, and every process of a run is connected to others."""

import errno
import resource

from ..errors import UsageError

# Of the launcher, which has the most: for each role a socket with its connections, pipes, a log and a process handle;
# and what Python and torch open. Measured: 13 and 9 for each role.
FILES, FILES_PER_ROLE = 40, 10
NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


def allow_open_files(roles: int) -> None:
    """Raise this process's limit to what a run with so many roles needs; its processes inherit it.

    UsageError where the system's limit is lower.
    """
    needed = FILES + FILES_PER_ROLE * roles
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise limit_error(f"{roles} processes need {needed} open files; the limit is {hard}", needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def limit_error(facts: str, needed: int = 1024) -> UsageError:
    """Return the error of a limit that is too low."""
    return UsageError("E234", facts, fix=f"ulimit -n {needed}")
