"""Trains for minutes or hours while replicas and shards are killed and replicas are added, and says what came of it.

    make endure MINUTES=120

The loss must fall, memory and open descriptors of the processes must not grow, and in the end each sample must have
been learnt from exactly as often as it was given out.
"""

import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
from listening import Listening
from safetensors.torch import load_file
from train_with_faults import children, signalled

from cutset.errors import UsageError
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare_run
from cutset.tools.leases.scale_requests import request_replicas
from cutset.tools.train import run

RATE = 2.0**-6  # so that counts are exact
SHARDS, MAX_REPLICAS, RESTARTS = 2, 4, 100
MIN_FAULT_S, MAX_FAULTS = 12.0, 300  # of a whole run, as restarts and joins have limits
REPORT_S, SETTLED_S = 15.0, 60.0
MAX_GROWTH = 1.2  # of the median of the last third over that of the first, once the run has settled


class Measured(NamedTuple):
    """Bytes and open files of a process, at a time when there are so many roles, each with connections."""

    at: float
    roles: int
    memory: int
    files: int


class Churn:
    """Hears of each step; kills, adds and removes now and then, and measures the processes."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self.folder, self.chance, self.began = folder, random.Random(seed), time.monotonic()
        self.end, self.fault_s = self.began + seconds, max(MIN_FAULT_S, seconds / MAX_FAULTS)
        self.next_fault, self.next_report = self.began + SETTLED_S / 2, self.began + REPORT_S
        self.done = Counter[str]()
        self.losses: list[float] = []
        self.measured: dict[str, list[Measured]] = defaultdict(list)  # by kind of role

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def step(self, step: int, loss: float) -> None:
        now = time.monotonic()
        self.losses.append(loss)
        if now > self.next_report:
            self.next_report = now + REPORT_S
            self.measure(now - self.began)
            recent = statistics.mean(self.losses[-50:])
            last = {kind: rows[-1] for kind, rows in self.measured.items()}
            size = {kind: f"{row.memory >> 20} MB, {row.files} files" for kind, row in last.items()}
            print(f"{now - self.began:6.0f} s, step {step}, loss {recent:.4f}, {dict(self.done)}, {size}", flush=True)
        if now > self.next_fault and now < self.end - MIN_FAULT_S:
            self.next_fault = now + self.fault_s * self.chance.uniform(0.5, 1.5)
            self.disturb()

    def disturb(self) -> None:
        kind = self.chance.choice(["worker killed", "worker killed", "shard killed", "replicas changed"])
        if kind == "replicas changed":
            with contextlib.suppress(UsageError):  # a run can have so many, and so many that join, and no more
                request_replicas(self.folder, self.chance.randint(1, MAX_REPLICAS))
                self.done[kind] += 1
            return
        role = kind.partition(" ")[0]
        names = [name.partition("+")[0] for _, name in children() if name.startswith(role)]
        if names and signalled(self.chance.choice(names), signal.SIGKILL):
            self.done[kind] += 1

    def measure(self, at: float) -> None:
        """Note the largest memory and number of open files of each kind of process."""
        largest: dict[str, tuple[int, int]] = {}
        roles = [(str(pid), name) for pid, name in children()]
        for process, name in [("self", "launcher"), *roles]:
            kind = name.partition("-")[0]
            try:
                lines = Path(f"/proc/{process}/status").read_text().splitlines()
                memory = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
                files = len(list(Path(f"/proc/{process}/fd").iterdir()))
            except (OSError, StopIteration):  # it has ended
                continue
            before = largest.get(kind, (0, 0))
            largest[kind] = max(before[0], memory), max(before[1], files)
        for kind, (memory, files) in largest.items():
            self.measured[kind].append(Measured(at, len(roles), memory, files))


def judge(churn: Churn, counts: torch.Tensor, samples: int) -> list[str]:
    """Return what is not as it should be."""
    wrong = []
    early, late = statistics.mean(churn.losses[:50]), statistics.mean(churn.losses[-50:])
    if not late < early / 2:
        wrong.append(f"the loss went from {early:.4f} to {late:.4f}")
    for kind, rows in churn.measured.items():
        settled = [row for row in rows if row.at > SETTLED_S]
        for roles in sorted({row.roles for row in settled}):
            alike = [row for row in settled if row.roles == roles]
            if (third := len(alike) // 3) < 2:
                continue
            for what in ("memory", "files"):
                values = [getattr(row, what) for row in alike]
                first, last = statistics.median(values[:third]), statistics.median(values[-third:])
                print(f"{kind}, of {roles} roles: {what} {first:,.0f} at first, {last:,.0f} at last")
                if last > MAX_GROWTH * first:
                    wrong.append(f"{what} of {kind} grew")
    passes = -counts / RATE
    print(f"each sample counts {int(passes.min())} to {int(passes.max())} times, {int(passes.sum())} together; "
          f"{samples} were given out")  # fmt: skip
    if int(passes.sum()) != samples or passes.max() - passes.min() > 1:
        wrong.append("samples do not count exactly once")
    return wrong


def main(minutes: float) -> int:
    with tempfile.TemporaryDirectory(prefix="cutset-endure-") as place:
        config = RunConfig(
            f"{Path(__file__).with_name('counted_digits.py')}:task",
            optimizer=SGD(RATE),
            epochs=100_000,
            evaluate_every=10_000_000,
            replicas=MAX_REPLICAS,
            shards=SHARDS,
            restarts=RESTARTS,
            baseline=False,
            out=Path(place) / "run",
        )
        churn = Churn(config.folder, 60 * minutes, seed=0)
        listener = Listening(churn.step, stop=lambda: churn.is_over)
        with prepare_run(config) as job:
            result = run(job, listener)
        counts = load_file(config.folder / "model.safetensors")["counts"].double()
        wrong = judge(churn, counts, int(result["rows"][-1]["samples"]))
    print(f"disturbed: {dict(churn.done)}; {'; '.join(wrong) or 'all is well'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
