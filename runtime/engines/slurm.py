"""The engine slurm: `srun` leads to the agent of each node, of the allocation that this runs in or of its own."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO

from ...errors import UsageError
from ..hosts.remote_host import AGENT
from .agent_command import AgentCommand
from .open_hosts import Opened, Streams, check_enough, open_hosts
from .programs import run_program, tidy_up

ASK_S = 30.0
_JOB = re.compile(r"(?:Pending|Granted) job allocation (\d+)")


class SlurmEngine:
    """The nodes of an allocation; see `Engine`.

    options: for salloc, by their long names, where this runs in no allocation; it then waits until there is one.
    """

    def __init__(self, name: str, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
        self.name, self._options, self._environ = name, dict(options), environ
        self.notices = list[str]()

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Start an agent on every node; see `Engine`."""
        with self._allocation(wanted) as job:
            nodes = self._list_nodes(job)
            check_enough(self.name, f"allocation {job}", nodes, least, fix=f"salloc --nodes={wanted}")
            with open_hosts(partial(self._find_streams, job)) as opened:
                yield opened

    def _list_nodes(self, job: str) -> list[str]:
        """Return the nodes that an allocation has now."""
        # Names, as scontrol lists them: its output as JSON is another one in every version.
        names = run_program(self.name, ["squeue", "--noheader", "--jobs", job, "--format=%N"], timeout_s=ASK_S)
        return run_program(self.name, ["scontrol", "show", "hostnames", names.strip()], timeout_s=ASK_S).split()

    def _find_streams(self, job: str) -> Streams:
        return {node: partial(AgentCommand, node, srun_command(job, node)) for node in self._list_nodes(job)}

    @contextmanager
    def _allocation(self, count: int) -> Iterator[str]:
        """Yield the number of the allocation that this process runs in, or of one that ends with the context."""
        job = self._environ.get("SLURM_JOB_ID", "")
        if job:
            yield job
            return
        options = {"job-name": "cutset", **self._options, "nodes": str(count)}
        words = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
        with tempfile.TemporaryFile("w+") as output:
            try:
                yield self._ask_for_nodes(words, output)
            finally:
                job = _find_job(output)
                if job:
                    self.notices += tidy_up(self.name, ["scancel", job], timeout_s=ASK_S)

    def _ask_for_nodes(self, words: Sequence[str], output: IO[str]) -> str:
        """Wait until salloc has an allocation; return its number. What it prints goes to a file."""
        try:
            salloc = subprocess.Popen(["salloc", "--no-shell", "--no-kill", *words], stdout=output, stderr=output)
        except OSError as error:
            facts = f"--on {self.name}: 'salloc' cannot be run: {error.strerror}"
            raise UsageError("E297", facts, fix="install Slurm's client, or run this where it is") from error
        try:
            code = salloc.wait()
        except BaseException:  # the user does not want to wait any longer
            salloc.send_signal(signal.SIGINT)
            try:
                salloc.wait(ASK_S)
            except subprocess.TimeoutExpired:
                salloc.kill()
                salloc.wait()
            raise
        job = _find_job(output)
        if code or not job:
            output.seek(0)
            facts = f"--on {self.name}: salloc gave no allocation: {output.read().strip()[-400:]}"
            raise UsageError("E297", facts, fix="see sinfo; --on slurm:partition=NAME,time=MINUTES names another")
        return job

    def __repr__(self) -> str:
        return f"SlurmEngine({self.name})"


def srun_command(job: str, node: str) -> list[str]:
    """Return the command that runs the agent on a node of an allocation; one task a step, or all would read alike."""
    step = ("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--cpu-bind=none", "--mem=0", "--mpi=none")
    return ["srun", f"--jobid={job}", *step, "--quiet", "--unbuffered", "--no-kill", "--", sys.executable, *AGENT]


def _find_job(output: IO[str]) -> str:
    """Return the number of the job that salloc has told of, "" if it has not."""
    output.seek(0)
    return next(iter(_JOB.findall(output.read())), "")
