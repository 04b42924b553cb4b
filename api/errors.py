"""The one tree of errors: each has a code, the facts, a line that fixes it, and the exit code of the command.

Bugs are every other exception; the command line ends those with exit code 1.
"""


class CutsetError(Exception):
    """An error that a user can understand and mend.

    code: short and stable, "E301"; facts: what happened, naming the culprit; fix: what to do, best as a line to copy.
    """

    exit_code = 1

    def __init__(self, code: str, facts: str, *, fix: str = "") -> None:
        super().__init__(code, facts, fix)
        self.code = code
        self.facts = facts
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.code}: {self.facts}" + (f"\n  fix: {self.fix}" if self.fix else "")


class UsageError(CutsetError):
    """The command or call is put together wrongly."""

    exit_code = 2


class BadInput(CutsetError):  # noqa: N818 - named for what the user meets
    """A model, data folder, placement or cluster that cannot be used."""

    exit_code = 3


class Infeasible(CutsetError):  # noqa: N818 - named for what the user meets
    """No plan fits the machines."""

    exit_code = 4


class NetworkError(CutsetError):
    """A peer cannot be reached, does not answer in time, or breaks the protocol."""

    exit_code = 5


class ProcessLost(CutsetError):  # noqa: N818 - named for what the user meets
    """A worker or shard died, or raised."""

    exit_code = 6


class Diverged(CutsetError):  # noqa: N818 - named for what the user meets
    """Loss, gradient or parameters are no longer finite."""

    exit_code = 7


class CheckpointError(CutsetError):
    """A checkpoint that is damaged, incomplete, or of another model."""

    exit_code = 8
