"""What methods reach with their defaults alone, as `cutset methods` shows it: measured by `cutset bench defaults`.

Test accuracies in percent of two replicas, the mean of the runs of three seeds on digits, of one seed on MNIST:

    cutset bench defaults --replicas 2
    cutset bench defaults --replicas 2 --seeds 1 --no-digits --data mnist:DIR

Of Sandblaster there is none on MNIST: its 200 passes take hours on two cores.
"""

COMMAND = "cutset bench defaults --replicas 2 --data mnist:DIR"
ONE_PROCESS = {"digits": 98.1, "MNIST": 98.2}
REACHED: dict[str, dict[str, float]] = {
    "allreduce": {"digits": 97.7, "MNIST": 97.8},
    "averaging": {"digits": 97.9, "MNIST": 97.9},
    "diloco": {"digits": 98.1, "MNIST": 98.0},
    "downpour": {"digits": 98.1, "MNIST": 97.6},
    "easgd": {"digits": 97.8, "MNIST": 97.8},
    "hogwild": {"digits": 97.9, "MNIST": 97.8},
    "sandblaster": {"digits": 97.7},
    "ssp": {"digits": 97.7, "MNIST": 97.9},
    "sync": {"digits": 97.7, "MNIST": 97.8},
}


def describe_reached(method: str) -> str:
    """Return what a method reaches on each task, as "digits 98.1 %, MNIST 97.9 %"; "" for one that is not listed."""
    return ", ".join(f"{task} {percent:.1f} %" for task, percent in REACHED.get(method, {}).items())
