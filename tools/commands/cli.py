"""The `cutset` command. Heavy imports happen inside the commands, so that `--help` answers at once.

Exit codes: 0 ok, 1 bug, 2 usage, 3 bad input, 4 infeasible plan, 5 network, 6 worker or shard lost, 7 diverged,
8 checkpoint, 130 interrupted, 143 terminated.
"""

import gc
import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

import click

from ...end_process import end_process
from ...errors import CutsetError, UsageError
from ...runtime.hosts.failure_report import out_of_memory_error
from ...runtime.hosts.role_process import BLAS_SLEEPS
from ..bench.commands.bench import bench
from ..open_files import NO_MORE_FILES, limit_error
from ..path_option import require_utf8
from ..strict_json import to_json
from .doctor_command import doctor
from .evaluate_command import evaluate
from .exchange_commands import export, import_
from .host_command import host
from .launch_command import launch
from .manifest_command import manifest
from .methods_command import methods_command
from .plan_commands import check, inspect, plan, schema, show
from .probe_command import probe
from .scale_command import scale
from .train_command import demo, train
from .watch_command import watch

INTERRUPTED, TERMINATED = 130, 143
COLLECT_AFTER = 50_000  # new objects; by Python's own 700, a fifth of the time of importing torch is spent on garbage


def run_program() -> NoReturn:
    """Run a command as the console script, and end the process."""
    gc.set_threshold(COLLECT_AFTER)
    os.environ |= BLAS_SLEEPS | os.environ
    try:
        main()
    except SystemExit as end:
        end_process(end.code if isinstance(end.code, int) else 1)


def main() -> NoReturn:
    """Run a command and turn errors into messages; SystemExit has the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    try:
        _check_surroundings()
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        _show_click_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; every process of the run is ended", err=True)
        code = INTERRUPTED
    except CutsetError as error:
        code = _show_error(error)
    except SystemExit as end:
        # click ends so, on another stdout, if the reader of a pipe has ended: `cutset schema | head -1` is no error.
        code = end.code if sys.stdout is stdout else 0
    except Exception as error:
        code = _show_unexpected(error)
    sys.exit(code if isinstance(code, int) else 0)


def _check_surroundings() -> None:
    """Raise UsageError where an argument is not text, or the current folder is gone, without which torch aborts."""
    for word in sys.argv[1:]:
        require_utf8("an argument", word)
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            "E235", f"there is no current folder: {error.strerror}", fix="cd to one that exists"
        ) from error


def _show_error(error: CutsetError) -> int:
    """Print an error; return its exit code."""
    if _wants_json():
        _print_json_error(error.code, error.facts, error.fix)
        return error.exit_code
    from ..report.console import print_error

    print_error(error)
    return error.exit_code


def _show_click_error(error: click.ClickException) -> None:
    """Print an error of how the command is used."""
    if not _wants_json():
        error.show()
        return
    context = getattr(error, "ctx", None)
    _print_json_error("usage", error.format_message(), f"{context.command_path} --help" if context is not None else "")


def _wants_json() -> bool:
    """Return whether results are to be JSON, and so errors; what follows a script is its own."""
    return "--json" in sys.argv[1:] and sys.argv[1] != launch.name


def _print_json_error(code: str, facts: str, fix: str) -> None:
    """Print an error as a line of JSON, on stderr as any other."""
    click.echo(to_json({"error": {"code": code, "facts": facts, "fix": fix}}), err=True)


def _show_unexpected(error: Exception) -> int:
    """Print an exception that is no `CutsetError`, while it is handled; return the exit code."""
    if getattr(error, "errno", None) in NO_MORE_FILES:  # that of a socket is no OSError
        return _show_error(limit_error(f"this process may open no more files: {error}"))
    if (out_of_memory := out_of_memory_error(error, "this process")) is not None:
        return _show_error(out_of_memory)
    if _comes_of_printing(error):
        facts = f"what the command prints cannot be written: {getattr(error, 'strerror', error)}"
        return _show_error(UsageError("E222", facts, fix="send it to where there is room"))
    traceback.print_exc()
    click.echo("this is a bug in cutset; please report it with the lines above", err=True)
    return 1


def _comes_of_printing(error: Exception) -> bool:
    """Whether an error is one of writing to stdout or stderr, as where a disk is full."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return isinstance(error, OSError) and frame.f_globals["__name__"] in (click.utils.__name__, "rich.console")


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


# The commands by what they are for, in the order in which a newcomer meets them.
COMMANDS = {
    "First steps": (demo, doctor),
    "A plan": (inspect, plan, show, check, probe, schema),
    "A run": (train, launch, watch, scale, evaluate, methods_command),
    "Weights": (export, import_),
    "Several machines": (host, manifest),
    "Measurements": (bench,),
}
EXAMPLES = """\b
Examples:
  cutset demo                                          # two minutes; leaves runs/last/report.html
  cutset plan mine.py:task --machines 2 -o cut.json    # whether cutting pays, and how
  cutset train mine.py:task --replicas 2               # and in another terminal: cutset watch
"""


class CommandsByPurpose(click.Group):
    """A group whose help lists its commands under headings, with whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, heading by heading."""
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(one.name or "", one.get_short_help_str(limit=80)) for one in commands])


@click.group(cls=CommandsByPurpose, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(package_name="cutset")
def cli() -> None:
    """Split a PyTorch model over several machines, and train the parts over ordinary Ethernet.

    TASK names a function that returns a cutset.Task or an nn.Module: pkg.module:factory or file.py:factory, with its
    arguments in brackets. Bundled tasks: cutset.models:digits, :digits_local, :digits_large, :digits_softmax; on files
    :mnist, :mnist_conv, :mnist_softmax, :logistic, :word2vec; on synthetic data :speech, :local_80m, :local_330m,
    :local_1700m, :alexnet, ":resnet(blocks=(3,4,6,3))", ":transformer(layers=12,width=768)".
    """


for listed in COMMANDS.values():
    for command in listed:
        cli.add_command(command)
