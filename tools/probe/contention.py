"""Contention: how many times as long processes of one host compute while all of them do as while the others are idle.

Caches, memory and, of two threads of a core, the core itself are shared. What operators of every class show is a
machine's (measure_machine.py), to go by where those of a task are not measured (task_operators.py).
"""

import statistics
from collections.abc import Sequence

DIGITS = 3


def compute_contention(alone_s: float, crowded_s: Sequence[float]) -> float:
    """Return the contention of as many processes as have cores of their own.

    alone_s: what some work takes in one of them while the others wait. crowded_s: what it takes each while all do it.
    One after the other they would take as many times as long as there are processes: more is other work that disturbed.
    """
    ratio = statistics.median(crowded_s) / alone_s
    return float(f"{min(len(crowded_s), max(1.0, ratio)):.{DIGITS}g}")


def compute_turn_taking(alone_s: float, crowded_s: Sequence[Sequence[float]], cores: int) -> float:
    """Return the contention of more processes than have cores of their own, which take turns.

    crowded_s: of each process, what each step takes it from the moment at which all begin. The last is to be done after
    what all take alone, divided by the cores; it is later where caches are cold after a turn, and where a core is idle
    while two processes share another one. One core could do it all in as many times as long as there are cores.
    """
    last_s = statistics.median(map(max, zip(*crowded_s, strict=True)))
    ratio = last_s * cores / (alone_s * len(crowded_s))
    return float(f"{min(cores, max(1.0, ratio)):.{DIGITS}g}")
