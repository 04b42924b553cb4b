"""A run over a thousand simulated machines, some of which are lost: `python fleet.py --machines 1000`.

Each machine has a replica, the first ones a shard, too. What is measured is the launcher with its supervisors, which
are the real ones: the CPU time that they take to start all and for a second of training, and how many messages they
could take in a second of it. What a message costs in libzmq is not part of it, and the memory is that of everything,
the simulated machines included. It fails where training takes the launcher more than `MOST_BUSY` of the time.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import simulate  # first, as it replaces the clock
from processes import SimChannel, SimHost, install_processes
from workload import install_workload
from world import FaultyWorld, VirtualTask

from cutset.runtime.channel.message import LAUNCHER, Message

START_S = 2.5  # of the run; all have started then
STEPS = 12
SHARDS = 2
MOST_BUSY = 0.5  # of one core


class LauncherMeter:
    """What the launcher takes of the CPU, and how many messages it gets.

    Attributes:
        start_s: of CPU time until all machines have started; training_s: after that.
        messages: while they train.
    """

    def __init__(self, world: FaultyWorld) -> None:
        self.start_s = self.training_s = 0.0
        self.messages = 0
        self._world = world

    def install(self) -> None:
        """Measure every turn of the launcher from now on."""
        resume, take = VirtualTask._resume, SimChannel._take

        def resume_measured(task: VirtualTask, waits: int) -> None:
            began_s = time.process_time()
            resume(task, waits)
            if task.name == LAUNCHER:
                self._count(time.process_time() - began_s)

        def take_counted(channel: SimChannel, message: Message) -> None:
            self.messages += channel.name == LAUNCHER and self._world.now > START_S
            take(channel, message)

        VirtualTask._resume = resume_measured  # type: ignore[method-assign]
        SimChannel._take = take_counted  # type: ignore[method-assign]

    def _count(self, seconds: float) -> None:
        if self._world.now > START_S:
            self.training_s += seconds
        else:
            self.start_s += seconds


def main() -> int:
    """Run a fleet. Returns 1 if the launcher could not keep up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--lost", type=int, default=10)
    parser.add_argument("--method", default="downpour")
    arguments = parser.parse_args()
    install_processes()
    install_workload()
    hosts = [SimHost(f"m{number:04}") for number in range(arguments.machines)]
    spread = range(SHARDS + 1, arguments.machines, arguments.machines // (arguments.lost + 1))[: arguments.lost]
    losses = [(START_S + 0.5 + 0.2 * number, f"lose {hosts[place].name}") for number, place in enumerate(spread)]
    plan = simulate.Plan(
        1,
        arguments.method,
        machines=1,
        replicas=len(hosts),
        shards=SHARDS,
        steps=STEPS,
        every=0,
        faults=tuple(losses),
    )
    world = FaultyWorld(plan.seed)
    meter = LauncherMeter(world)
    meter.install()
    with tempfile.TemporaryDirectory(prefix="fleet-") as out:
        outcome = simulate.run(plan, Path(out), faults=True, hosts=hosts, world=world)
    trained_s = outcome.seconds - START_S
    busy, rate = meter.training_s / trained_s, meter.messages / meter.training_s
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    moved = sum("its roles go to" in sentence for sentence in outcome.said)
    print(f"{len(hosts)} machines, {moved} of them lost; {STEPS} steps of {arguments.method} in {trained_s:.1f} s")  # noqa: T201
    print(f"launcher: {meter.start_s:.1f} s of CPU to start all; {100 * busy:.0f} % of a core while they train")  # noqa: T201
    print(f"messages: {meter.messages / trained_s:,.0f} a second came, {rate:,.0f} a second could; {memory:.0f} MB")  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="fleet-") as undisturbed:
        wrong = simulate.find_wrong(plan, outcome, Path(undisturbed))
    print(wrong or "the parameters are those that they should be")  # noqa: T201
    return 1 if wrong or moved != arguments.lost or busy > MOST_BUSY else 0


if __name__ == "__main__":
    sys.exit(main())
