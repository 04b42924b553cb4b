"""Runs of training in virtual time, with up to three faults each: `python simulate.py --seeds 1000`, or `--seed 17`.

Launcher, supervisors, shards, clients and methods are the real ones; processes, network, disk and clock are simulated
(world.py, processes.py). Every run must end, without an error; and

- in lock step with the bits of a run without faults (not with backups, nor with overlap);
- otherwise with every batch applied exactly once to every slice, whatever was lost; but for those that workers gave up
  while the disk was full, of which some may be missing, or be there twice.
"""

import sys
from pathlib import Path

from world import FaultyWorld, enter, install_clock, leave

from cutset.tools.run_listener import RunListener

install_clock()

import argparse  # noqa: E402
import multiprocessing  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import traceback  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from typing import Any  # noqa: E402

import msgspec  # noqa: E402
import torch  # noqa: E402
from processes import SimHost, SimProcess, break_connection, install_processes  # noqa: E402
from torch import Tensor  # noqa: E402
from workload import METHODS, install_workload, make_job  # noqa: E402
from world import VirtualTask  # noqa: E402

from cutset.ps.checkpoint.manifest import ShardFile  # noqa: E402
from cutset.ps.checkpoint.shard_file import read_shard  # noqa: E402
from cutset.ps.server.slice_server import SliceServer  # noqa: E402
from cutset.runtime.channel.message import Message  # noqa: E402
from cutset.tools.hosts.run_hosts import RunHosts  # noqa: E402
from cutset.tools.job.job import Job  # noqa: E402
from cutset.tools.training.supervision import run_roles  # noqa: E402
from cutset.tools.training.supervisor import TrainingSupervisor  # noqa: E402

MAX_FAULTS = 3
START_S = 2.5  # all roles have started then; one that is lost before ends the run
FAULTS = ("kill", "kill", "kill", "stop", "pause", "break", "full", "lose")


@dataclass
class Outcome:
    """How a run ended. values: by slice, on the disk. lost: roles that were restarted; said: what the user was told."""

    values: dict[int, Tensor] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0


SAID: list[Callable[[Outcome], object]] = []  # called with how a run ended


@dataclass(frozen=True)
class Plan:
    """What happens in the run of a seed. faults: after how many seconds, and which."""

    seed: int
    method: str
    machines: int
    replicas: int
    shards: int
    steps: int
    every: int
    faults: tuple[tuple[float, str], ...]


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    import random

    chance = random.Random(seed)
    steps = chance.choice((12, 18, 24))
    count = chance.randint(1, MAX_FAULTS)
    at = [START_S + chance.uniform(0.0, steps * 0.8 + 6.0) for _ in range(count)]
    if chance.random() < 0.6:  # together, or nearly
        at = [at[0] + chance.choice((0.0, 0.05, 0.4, 2.0, 3.0)) * place for place in range(count)]
    return Plan(
        seed,
        chance.choice(METHODS),
        machines=chance.choice((1, 1, 2)),
        replicas=chance.choice((2, 2, 3)),
        shards=chance.choice((1, 2, 2)),
        steps=steps,
        every=chance.choice((0, 0, 2)),
        faults=tuple((when, chance.choice(FAULTS)) for when in sorted(at)),
    )


def run(
    plan: Plan, out: Path, *, faults: bool, hosts: Sequence[SimHost] = (), world: FaultyWorld | None = None
) -> Outcome:
    """Run a plan, on one host where none are given; CutsetError or StandstillError if it does not end well."""
    outcome = Outcome()
    world = world or FaultyWorld(plan.seed)
    enter(world)
    SimProcess.all.clear()
    job = make_job(
        plan.method,
        out,
        seed=plan.seed,
        machines=plan.machines,
        replicas=plan.replicas,
        shards=plan.shards,
        steps=plan.steps,
        every=plan.every,
    )
    results: list[Any] = []

    def launch() -> None:
        run_hosts = RunHosts(job, hosts or [SimHost()], on_notice=outcome.said.append)
        supervisor = TrainingSupervisor(job, run_hosts, listener=RunListener(), on_notice=outcome.said.append)
        try:
            values = run_roles(job, supervisor, run_hosts, RunListener(), outcome.said.append, None)
            results.append([values[name] for name in supervisor.shards])
        except Exception as error:  # the caller of `run` shall see it
            results.append(error)
        outcome.lost = [record["role"] for record in supervisor.restarts]

    VirtualTask(world, "launcher", launch).begin()
    if faults:
        for when, what in plan.faults:
            world.at(when, happening(what, world, hosts))
    try:
        world.run(lambda: bool(results))
    finally:
        world.end()
        leave()
    outcome.seconds = world.now
    if isinstance(results[0], Exception):
        results[0].add_note("\n".join(outcome.said))
        raise results[0]
    for tell in SAID if faults else ():
        tell(outcome)
    outcome.values = read_values(job, results[0])
    return outcome


def happening(what: str, world: FaultyWorld, hosts: Sequence[SimHost]) -> Callable[[], None]:
    """Return what lets a fault happen: to roles that are there then, or, as "lose m0007", to a host."""
    if what.startswith("lose "):
        return next(host.lose for host in hosts if what == f"lose {host.name}")

    def happen() -> None:
        working = sorted((process for process in SimProcess.all if process.works), key=lambda one: one.name)
        if not working:
            return
        victim = world.chance.choice(working)
        match what:
            case "kill":
                victim.kill()
            case "stop":
                victim.stop()
            case "pause":
                victim.stop()
                world.at(world.chance.choice((2.0, 6.0, 12.0)), victim.proceed)
            case "break":
                pairs = [(a.name, b.name) for a in working for b in working if a.name < b.name and talk(a.name, b.name)]
                if pairs:
                    break_connection(*world.chance.choice(pairs))
            case "full":
                world.disk_full_until = world.now + world.chance.choice((1.0, 10.0, 60.0))
            case "lose":
                end, rate = world.now + 3.0, world.chance.choice((0.05, 0.5))
                world.loses = lambda a, b: (
                    world.now < end and a[0] + b[0] in ("ws", "sw") and world.chance.random() < rate
                )

    return happen


def talk(a: str, b: str) -> bool:
    """Whether two roles exchange anything."""
    if a.startswith("shard") != b.startswith("shard"):
        return True
    return a.startswith("worker") and a.partition(".")[0] == b.partition(".")[0]


def read_values(job: Job, shards: list[dict[str, Any]]) -> dict[int, Tensor]:
    """Return the values of all slices in the final checkpoint."""
    paths = [job.out / "checkpoint" / msgspec.convert(shard["file"], ShardFile).name for shard in shards]
    return {state.slice.number: state.value for path in paths for state in read_shard(path).slice_states}


def check(plan: Plan, out: Path) -> str:
    """Run a plan; return what is wrong, "" if nothing is."""
    try:
        outcome = run(plan, out / "faults", faults=True)
    except BaseException as error:
        lines = traceback.format_exception(error)
        return f"{plan}\n{''.join(lines[-6:])}"
    wrong = find_wrong(plan, outcome, out)
    return f"{plan}\n{wrong}\n{outcome.said}" if wrong else ""


def find_wrong(plan: Plan, outcome: Outcome, out: Path) -> str:
    """Return what is wrong with the parameters that a plan ended with, "" if nothing is."""
    method = make_job(plan.method, out, seed=0, machines=1, replicas=2, shards=1, steps=2, every=0).method
    wrong = ""
    if method.lock_step and not method.backup_replicas and "overlap" not in plan.method:
        undisturbed = run(plan, out / "undisturbed", faults=False)
        wrong = ", ".join(
            f"slice {number} differs"
            for number, v in outcome.values.items()
            if not torch.equal(v, undisturbed.values[number])
        )
    elif not method.lock_step and method.name != "easgd":
        wrong = check_counts(outcome, any(what == "full" for _, what in plan.faults))
    return wrong


def break_dedupe() -> None:
    """Have shards apply every push that comes."""
    push = SliceServer.push

    def push_again(self: SliceServer, message: Message) -> Any:
        if self.slice_state is not None:
            self.slice_state.applied[message.sender] = message.body["number"] - 1
        return push(self, message)

    SliceServer.push = push_again  # type: ignore[method-assign]


def check_counts(outcome: Outcome, disk_was_full: bool) -> str:
    """Check how often each batch was applied to each slice."""
    lost = Counter(role.partition(" ")[0] for role in outcome.lost)
    given_up = disk_was_full and lost["shard"]
    least, most = (0, 1 + lost["replica"]) if given_up else (1, 1)
    counts = {number: (-values).tolist() for number, values in outcome.values.items()}
    wrong = {(n, b): count for n, all_ in counts.items() for b, count in enumerate(all_) if not least <= count <= most}
    return f"batches applied {sorted(wrong.items())[:8]} times, not {least} to {most}" if wrong else ""


def simulate(seed: int) -> str:
    """Check the run of a seed; return what is wrong."""
    out = Path(tempfile.mkdtemp(prefix="simulation-"))
    try:
        return check(draw(seed), out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def simulate_all(seeds: range, jobs: int) -> Iterator[tuple[int, str]]:
    """Simulate seeds in some processes; yield each with what is wrong."""
    if jobs == 1:
        yield from ((seed, simulate(seed)) for seed in seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=2000) as pool:
        yield from zip(seeds, pool.imap(simulate, seeds, chunksize=8), strict=True)


def main() -> int:
    """Simulate what the arguments name. Returns 1 if something was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="tell what was said to the user")
    parser.add_argument("--break-dedupe", action="store_true", help="take repeated pushes for new ones")
    arguments = parser.parse_args()
    install_processes()
    install_workload()
    if arguments.seed is not None:
        print(draw(arguments.seed))  # noqa: T201
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    if arguments.break_dedupe:
        break_dedupe()
    if arguments.verbose:
        SAID.append(lambda outcome: print(outcome.seconds, *outcome.said, sep="\n"))  # noqa: T201
    wrong = 0
    for seed, what in simulate_all(seeds, 1 if len(seeds) == 1 else arguments.jobs):
        if what:
            wrong += 1
            print(f"seed {seed}: {what}", flush=True)  # noqa: T201
    print(f"{len(seeds)} seeds, {wrong} wrong")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
