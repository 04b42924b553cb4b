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
