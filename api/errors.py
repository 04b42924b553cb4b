"""The errors that users meet: each has a code, the facts, a line that fixes it, and the exit code of the command.

Every other exception is a bug, with which the command line exits with code 1. error_codes.py has the meaning of each
code; docs/errors.md lists all.
"""


class CutsetError(Exception):
    """An error that a user can understand and fix.

    code: short and stable, such as "E301". facts: what happened, naming the culprit. fix: what to do, best as a line to
    copy.
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
    """The options of a command, or the arguments of a call, are wrong or do not fit together."""

    exit_code = 2


class BadInput(CutsetError):  # noqa: N818 - named for what the user meets
    """A model, data set, placement or cluster file cannot be used."""

    exit_code = 3


class Infeasible(CutsetError):  # noqa: N818 - named for what the user meets
    """No plan fits the machines."""

    exit_code = 4


class NetworkError(CutsetError):
    """A peer cannot be reached, does not answer in time, or breaks the protocol."""

    exit_code = 5


class ProcessLost(CutsetError):  # noqa: N818 - named for what the user meets
    """A process died, hangs, or raised an error."""

    exit_code = 6


class Diverged(CutsetError):  # noqa: N818 - named for what the user meets
    """The loss, a gradient or parameters are no longer finite."""

    exit_code = 7


class CheckpointError(CutsetError):
    """A checkpoint is damaged, incomplete, or of another model."""

    exit_code = 8
