"""Measures a benchmark in a process of its own, so that none finds what another has left, or ends the others."""

import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import click
import msgspec

from ....errors import CutsetError
from ..peer_comparison import PeerComparison
from .benchmark import BenchmarkOptions
from .benchmarks import find_benchmarks


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process has measured; trouble: why it has nothing."""

    comparisons: tuple[PeerComparison, ...] = ()
    trouble: str = ""


def measure_apart(name: str, options: BenchmarkOptions) -> Measured:
    """Measure the benchmark of this name; its lines of progress go to stderr."""
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        result = Path(folder) / "result.json"
        arguments = [name, msgspec.json.encode(options).decode(), str(result)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        if done.returncode or not result.exists():
            return Measured(trouble=f"the process that measured ended with {done.returncode}")
        return msgspec.json.decode(result.read_bytes(), type=Measured)


def _measure(name: str, options: BenchmarkOptions) -> Measured:
    (benchmark,) = find_benchmarks([name])
    try:
        return Measured(tuple(benchmark.measure(options, lambda line: click.echo(f"  {line}", err=True))))
    except CutsetError as error:
        return Measured(trouble=f"{error.code}: {error.facts}")
    except Exception as error:
        traceback.print_exc()
        return Measured(trouble=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    name, options, result = sys.argv[1:]
    measured = _measure(name, msgspec.json.decode(options, type=BenchmarkOptions))
    Path(result).write_bytes(msgspec.json.encode(measured))
