"""The written models of the sweep as tasks for the command: `kinds.py:task_of(kind='GCN')`.

One batch is all their data, so that an epoch is a step, and each step is evaluated.
"""

import torch
from sweep.plain import find_subject
from sweep.registry import list_trials
from sweep.selection import Entry

import cutset


def task_of(kind: str) -> cutset.Task:
    """Return the task of a written model, in float64."""
    subject = find_subject(list_trials(Entry("written", kind)))
    data = subject.data

    def example(batch: int) -> cutset.Data:
        return data.rows(torch.arange(batch))

    return cutset.Task(kind, subject.build, subject.loss, example, lambda split: data, batch=len(data))
