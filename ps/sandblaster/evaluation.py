"""`Evaluation`: the portions of one batch of operations, from handing them out to the mean loss of the batch."""

import math
from collections.abc import Sequence

import msgspec

from ...errors import NetworkError
from .solver import Portions
from .vector_ops import Batch, Evaluate
from .work_queue import MAX_COPIES, PortionGroup, WorkQueue

GROUPS_PER_REPLICA = 16  # at least, if a batch has so many portions
MAX_GROUP_LEVEL = 4  # a group has at most 2^4 = 16 portions


class Evaluation(msgspec.Struct):
    """The evaluations in batch `number` of an epoch.

    level: of all groups in their trees. places: of each group, the place of its `Evaluate` in the batch, and its index
    in the tree. losses: of the portions of each group. machines: by replica and group, the machines that are done.
    """

    epoch: int
    number: int
    batch: Batch
    level: int
    places: list[tuple[int, int]]
    queue: WorkQueue
    groups: dict[tuple[int, int], int]  # the inverse of `places`
    losses: dict[int, list[float]] = {}
    machines: dict[tuple[str, int], set[str]] = {}

    def hand_out(self, replica: str) -> PortionGroup | None:
        """Hand out a group of portions to a replica; None if there is nothing that it could do."""
        group = self.queue.take(replica)
        return None if group is None else self._describe(group)

    def finish(self, worker: str, place: int, index: int, losses: list[float] | None, *, machines: int) -> bool:
        """Note that one machine of a replica, which has so many, is done with group (place, index).

        losses: the mean loss of each portion, if this machine knows them. Returns whether that completes the group.
        """
        replica, group = worker.partition(".")[0], self.groups[place, index]
        if losses is not None:
            self.losses.setdefault(group, losses)
        done_machines = self.machines.setdefault((replica, group), set())
        done_machines.add(worker)
        return len(done_machines) == machines and self.queue.finish(replica, group)

    def remove_replica(self, replica: str) -> None:
        """Hand out again all that a replica had or has done."""
        self.queue.remove_replica(replica)
        self.machines = {key: workers for key, workers in self.machines.items() if key[0] != replica}

    def fill_in_losses(self, answers: Sequence[float], portions: Portions) -> list[float]:
        """Return the scalars of the batch with mean losses for its evaluations, of which shards know nothing.

        Raises NetworkError if the losses of a group are missing.
        """
        weighted: dict[int, list[float]] = {}
        for group, (place, _) in enumerate(self.places):
            numbers, losses = self._describe(group).portions, self.losses.get(group)
            if losses is None or len(losses) != len(numbers):
                facts = f"no machine has sent the losses of portions {numbers} of batch {self.number}"
                raise NetworkError("E555", facts)
            sizes = [portions.count_samples(n, n + 1) for n in numbers]
            weighted.setdefault(place, []).extend(loss * size for loss, size in zip(losses, sizes, strict=True))
        filled = list(answers)
        scalars = [(place, one) for place, one in enumerate(self.batch) if one.returns_scalar]
        for at, (place, one) in enumerate(scalars):
            if isinstance(one, Evaluate):
                filled[at] = _sum(weighted[place]) / portions.count_samples(one.first, one.last)
        return filled

    def _describe(self, group: int) -> PortionGroup:
        place, index = self.places[group]
        operation = self.batch[place]
        assert isinstance(operation, Evaluate)
        count = operation.last - operation.first
        return PortionGroup(self.epoch, self.number, place, self.level, index, operation.first, count)


def begin_evaluation(epoch: int, number: int, batch: Batch, *, replicas: int, single: bool) -> Evaluation | None:
    """Divide the portions of a batch into groups; None if it evaluates nothing.

    single: make as many groups as there are replicas, and hand out each once.
    """
    requests = [(place, one) for place, one in enumerate(batch) if isinstance(one, Evaluate)]
    if not requests:
        return None
    count = sum(one.last - one.first for _, one in requests)
    level = max(0, min(MAX_GROUP_LEVEL, int(math.log2(max(1, count / (GROUPS_PER_REPLICA * replicas))))))
    if single:
        level = max(0, math.ceil(math.log2(count / replicas)))
    # A group lies within one range of portions.
    level = min(level, *((one.last - one.first - 1).bit_length() for _, one in requests))
    places = [(place, i) for place, one in requests for i in range(-(-(one.last - one.first) // (1 << level)))]
    queue = WorkQueue(len(places), copies=1 if single else MAX_COPIES)
    return Evaluation(epoch, number, batch, level, places, queue, {place: n for n, place in enumerate(places)})


def _sum(losses: list[float]) -> float:
    """Return the sum of losses, which is the same in any order; NaN or infinite if one of them is."""
    return math.fsum(losses) if all(map(math.isfinite, losses)) else sum(losses)
