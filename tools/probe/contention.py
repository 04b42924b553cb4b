"""Contention: how many times as long processes of one host compute while all of them do as while the others are idle.

Caches, memory and, of two threads of a core, the core itself are shared. What operators of every class show is a
machine's (measure_machine.py), to go by where those of a task are not measured (task_operators.py). Measured of a task,
the processes wait for the slower one after each operator, too, as machines do that have parts of it; a plan that seldom
waits is so predicted to take a little too long.
"""

import statistics
from collections.abc import Sequence

DIGITS = 3


def compute_contention(alone_s: Sequence[float], crowded_s: Sequence[Sequence[float]], cores: int) -> float:
    """Return how many times as long some work takes where all processes do it as where the cores wait for one of them.

    alone_s: that it takes in one of them while the others wait, by rounds. crowded_s: of each process, what it takes
    in the same rounds in a step that all make at once. cores: how many of the processes have cores of their own; more
    of them take turns. The middle round counts.

    Machines that have parts of one model wait for each other, so that the last one counts: its caches are cold after a
    turn, a core is idle while two processes share another one, or its core is the slower one at that moment. All is to
    be done after what all take alone, divided by the cores; one core could do it in as many times as long as there are
    cores, and more is other work that disturbed.
    """
    last_s = map(max, zip(*crowded_s, strict=True))
    longer = statistics.median(last / alone for last, alone in zip(last_s, alone_s, strict=True))
    ratio = longer * cores / len(crowded_s)
    return float(f"{min(cores, max(1.0, ratio)):.{DIGITS}g}")
