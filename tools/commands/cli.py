"""The `cutset` command. Heavy imports happen inside the commands, so that `--help` answers at once.

Exit codes: 0 ok, 1 bug, 2 usage, 3 bad input, 4 infeasible plan, 5 network, 6 worker or shard lost, 7 diverged,
8 checkpoint, 130 interrupted, 143 terminated.
"""

import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

import click

from ...errors import CutsetError
from ..bench.commands.bench import bench
from .evaluate_command import evaluate
from .methods_command import methods_command
from .plan_commands import check, inspect, plan, schema, show
from .probe_command import probe
from .scale_command import scale
from .train_command import demo, train

INTERRUPTED, TERMINATED = 130, 143


def main() -> NoReturn:
    """Run a command, as the console script, and turn errors into messages and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; every process of the run is ended", err=True)
        code = INTERRUPTED
    except CutsetError as error:
        from ..report.console import print_error

        print_error(error)
        code = error.exit_code
    except SystemExit as end:
        # click ends so, on another stdout, if the reader of a pipe has ended: `cutset schema | head -1` is no error.
        code = end.code if sys.stdout is stdout else 0
    except Exception:
        traceback.print_exc()
        click.echo("this is a bug in cutset; please report it with the lines above", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cutset")
def cli() -> None:
    """Split a PyTorch model over several machines, and train the parts over ordinary Ethernet.

    TASK names a function that returns a cutset.Task or an nn.Module: pkg.module:factory or file.py:factory, with its
    arguments in brackets. Bundled tasks: cutset.models:digits, :digits_local, :digits_softmax; on files :mnist,
    :mnist_conv, :mnist_softmax, :logistic, :word2vec; on synthetic data :speech, :local_80m, :local_330m, :local_1700m,
    :alexnet, ":resnet(blocks=(3,4,6,3))", ":transformer(layers=12,width=768)".
    """


for command in (plan, show, check, inspect, probe, train, demo, evaluate, scale, bench, methods_command, schema):
    cli.add_command(command)
