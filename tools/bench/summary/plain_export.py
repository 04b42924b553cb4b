"""The CPU seconds to import torch and to export the model of a task, in a process of its own: a peer of planning.

A plan begins with such a graph, so that its ratio to this tells what planning adds, whatever the machine.
"""

import subprocess
import sys
import time

import msgspec
import torch

from ...task.load_task import TaskSpec, build_model, load_task

NAME = "import torch, torch.export"


def measure_export(task: str) -> float:
    """Return the CPU seconds of a process that exports the model of a task."""
    command = [sys.executable, "-P", "-m", __name__, task]
    return float(msgspec.json.decode(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def _export_once(name: str) -> float:
    task = load_task(TaskSpec(name))
    assert task.example is not None
    example = task.example(1)
    model, inputs = build_model(task, seed=0, device="meta"), tuple(tensor.to("meta") for tensor in example.inputs)
    torch.export.export(model, inputs, strict=False)
    return time.process_time()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_export_once(sys.argv[1])))
