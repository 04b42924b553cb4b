"""Runs a program that is built with ps-lite (dmlc/ps-lite), another parameter server, for `cutset bench ps` to compare.

The user names the program, which plays all three roles of ps-lite, by the environment: its servers apply SGD, and its
worker prints "push A pull B push+pull C", the rates of 100 MB in 25 keys in GB/s.
"""

import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ....errors import BadInput
from .parameter_server import CASES, PULL, PUSH, PUSH_PULL, Case, ServerRate, measure
from .transports import HOST

PSLITE = "ps-lite"
TIMEOUT_S = 120.0
ROUNDS_BETWEEN = 2  # of ours, between two runs of the program: a machine that others share is not long the same
_RATES = re.compile(r"push ([\d.]+) pull ([\d.]+) push\+pull ([\d.]+)")


def measure_beside(program: Path | None, *, rounds: int, cases: Sequence[Case] = CASES) -> list[ServerRate]:
    """Time all cases as `measure` does; where there is a program, in turn with it, which has rounds of its own.

    BadInput where the program cannot be run, or prints no rates.
    """
    if program is None:
        return measure(rounds=rounds, cases=cases)
    runs, timed = [run_pslite(program)], dict[tuple[str, str, int, str], ServerRate]()
    for done in range(0, rounds, ROUNDS_BETWEEN):
        for row in measure(rounds=min(ROUNDS_BETWEEN, rounds - done), cases=cases):
            key = row.way, row.what, row.shards, row.optimizer
            timed[key] = replace(row, rates=(*timed[key].rates, *row.rates)) if key in timed else row
        runs.append(run_pslite(program))
    return [*timed.values(), *make_rows(runs)]


def run_pslite(program: Path, servers: int = 1) -> dict[str, float]:
    """Run the program once, with so many servers and one worker. Return its bytes per second by operation.

    BadInput where it cannot be run, or prints no rates.
    """
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": "1",
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
    }
    processes: list[subprocess.Popen[str]] = []
    try:
        for role in ("scheduler", *["server"] * servers, "worker"):
            environment["DMLC_ROLE"] = role
            processes.append(subprocess.Popen([program.absolute()], env=environment, stdout=subprocess.PIPE, text=True))
        output = processes[-1].communicate(timeout=TIMEOUT_S)[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(
            "E377", f"{program} does not run: {error}", fix="a program that is built with ps-lite"
        ) from error
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    found = _RATES.search(output)
    if found is None:
        fix = "a worker that prints: push A pull B push+pull C, in GB/s"
        raise BadInput("E377", f"{program} printed no rates: {output.strip()[:80]!r}", fix=fix)
    return {what: 1e9 * float(rate) for what, rate in zip((PUSH, PULL, PUSH_PULL), found.groups(), strict=True)}


def make_rows(runs: list[dict[str, float]]) -> list[ServerRate]:
    """Return the rows of the table for several runs with one server."""
    return [ServerRate(PSLITE, what, 1, "sgd", tuple(run[what] for run in runs)) for what in (PUSH, PULL, PUSH_PULL)]
