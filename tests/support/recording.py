"""Spans of two machines made by hand, which wait for each other, and those of a real replica."""

from collections.abc import Sequence

from cutting import Subject, finest_cut, load, subject

from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.trace import Span


def exchange(step: int, at: float = 10.0) -> list[list[Span]]:
    """A step of 10 s from `at` on: machine 0 sends after 2 s, machine 1 takes that after 3 s and answers after 6 s.

    Machine 0 takes the answer after 8 s. Machine 1 is done a second after its answer.
    """
    first = [
        Span("forward", step, at, at + 2, 0, 0),
        Span("send", step, at + 2, at + 2, 0, 4, 1, 100, "forward"),
        Span("wait", step, at + 2, at + 8),
        Span("receive", step, at + 8, at + 8, 0, 4, 1, 60, "backward"),
        Span("backward", step, at + 8, at + 9.5, 0, 0),
        Span("step", step, at, at + 10),
    ]
    second = [
        Span("wait", step, at, at + 3),
        Span("receive", step, at + 3, at + 3, 0, 4, 0, 100, "forward"),
        Span("forward", step, at + 3, at + 5, 0, 0),
        Span("backward", step, at + 5, at + 6, 0, 0),
        Span("send", step, at + 6, at + 6, 0, 4, 0, 60, "backward"),
        Span("step", step, at, at + 7),
    ]
    return [first, second]


def one_after_another(*recordings: list[list[Span]]) -> list[list[Span]]:
    """Several steps of the same machines as one recording."""
    machines = range(len(recordings[0]))
    return [[span for recording in recordings for span in recording[machine]] for machine in machines]


def halves(name: str = "mlp") -> tuple[Subject, list[Program]]:
    """A model and its programs for two machines."""
    of = subject(name)
    return of, programs(lower_cut(of.graph, finest_cut(of.graph, 2)), training=True)


def run(steps: Sequence[int], *, micros: int = 2) -> tuple[list[list[Span]], list[Program]]:
    """What two workers record of some steps, and their programs."""
    of, parts = halves()
    with Replica(parts) as replica:
        load(replica, of)
        for worker in replica.workers:
            worker.trace.steps = range(min(steps), max(steps) + 1)
        for step in steps:
            replica.step(of.several(micros), step)
        return [worker.trace.spans for worker in replica.workers], parts
