"""`VectorShard`: a parameter server for batch methods. It holds named vectors beside the parameters, carries out what a
coordinator asks, and adds up gradients; `handle` is its whole protocol, without I/O but for the files of commits.

Messages of the coordinator, and the answers:
  roll back  {epoch, number}         "rolled back" {epoch}: everything is again as after that operation
  operate    {epoch, number, batch}  "operated" {epoch, number, shares}, once the gradients in it are complete
  commit     {epoch, number, keep}   "committed" {epoch, number}: a file has it; older ones go, but for that of `keep`
Of workers, about a slice, the `edge` of the message:
  point      {epoch, number, place}  "point" values [n] to compute gradients at, or {stale} where nobody wants them
  gradient   {epoch, number, place, level, index} [n]   "summed"
  read       {}                      "values" [n]: the parameters as they are
number: of a batch of operations, 1, 2, 3, ...; one that was carried out is answered again, not carried out again, so a
lost answer does no harm. epoch: grows with each roll back; what belongs to an earlier one changes nothing. place: of an
`Evaluate` in its batch. level, index: see portion_sums.py.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...errors import CheckpointError
from ...runtime.channel.message import Message
from ..server.replies import Replies, broken
from ..checkpoint.write_checkpoint import write_shard
from ..optimizers.standard import SGD
from ..slices.slice_state import Holding
from ..slices.slicing import Slice
from .solver import Portions
from .tree_sum import PortionSum
from ..checkpoint.shard_file import read_shard
from .vector_ops import AT, AnyOperation, Evaluate, Vectors, numbers, shares

RULE = SGD(1.0)  # that files of shards name; nothing is applied by it

Initial = Callable[[Slice], Tensor]  # the values [n] that a slice begins with


class _Batch(msgspec.Struct):
    """A batch that is being carried out, up to operation `at`. sums: by place, of each slice."""

    number: int
    operations: list[AnyOperation]
    coordinator: str
    at: int = 0
    shares: list[float] = []
    sums: dict[int, dict[int, PortionSum]] = {}


class VectorShard:
    """Holds slices of every vector. folder: of the commits' files. portions: that batches are made of."""

    rule = RULE

    def __init__(self, index: int, slices: Sequence[Slice], portions: Portions, initial: Initial, folder: Path) -> None:
        self.index = index
        self._pieces = {piece.number: piece for piece in slices}
        self._portions, self._initial, self._folder = portions, initial, folder
        self._vectors: dict[int, Vectors] = {}  # by slice
        self._epoch = 0
        self._number = 0  # of the last batch that was carried out
        self._committed = 0  # of the last commit in this epoch, or where that began
        self._answer: list[float] = []
        self._batch: _Batch | None = None
        self._last: _Batch | None = None  # whose points some may want yet, for a loss that was lost
        self._waiting: list[Message] = []  # of workers, for what is to come
        self._counts = {"operations": 0, "round_trips": 0, "gradients": 0, "late": 0, "bytes_in": 0, "bytes_out": 0}

    def handle(self, message: Message) -> Replies:
        """Take in one message; the answers."""
        self._counts["bytes_in"] += message.bytes
        match message.kind:
            case "roll back":
                return self._rolled_back(message)
            case "operate":
                return self._operate(message)
            case "commit":
                return self._commit(message)
            case "point" | "gradient" | "read":
                return self._of_worker(message)
        raise broken(self.index, None, message, "is of an unknown kind")

    def turn(self) -> Replies:
        """Nothing goes on unasked."""
        return []

    def close(self) -> Replies:
        """Nothing is under way."""
        return []

    busy = False

    def holdings(self) -> list[Holding]:
        """Every slice with its parameters, for a checkpoint."""
        return [Holding(piece, self._vectors[n][AT], {}, self._number) for n, piece in sorted(self._pieces.items())]

    def statistics(self) -> dict[str, Any]:
        """Plain data: what was done, and how many vectors there are."""
        held = max((len(vectors) for vectors in self._vectors.values()), default=0)
        return {"shard": self.index, "vectors": held, **self._counts}

    def __repr__(self) -> str:
        return f"VectorShard({self.index}, epoch={self._epoch}, number={self._number}, batch={self._batch})"

    def _rolled_back(self, message: Message) -> Replies:
        epoch, number = message.body["epoch"], message.body["number"]
        if epoch > self._epoch:
            self._vectors = self._read(number) if number else self._first()
            self._epoch, self._number, self._answer, self._batch, self._last = epoch, number, [], None, None
            self._committed = number
        return [(message.sender, Message("rolled back", body={"epoch": epoch})), *self._woken()]

    def _first(self) -> dict[int, Vectors]:
        return {n: {AT: self._initial(piece)} for n, piece in self._pieces.items()}

    def _operate(self, message: Message) -> Replies:
        number, sender = message.body["number"], message.sender
        if message.body["epoch"] != self._epoch:
            return []
        self._counts["round_trips"] += 1
        if self._batch is not None and number == self._batch.number:
            self._batch.coordinator = sender
            return []
        if number == self._number and self._batch is None:
            return [(sender, self._answered())]
        if number != self._number + 1 or self._batch is not None:
            raise broken(self.index, None, message, f"has number {number}; the last was {self._number}")
        try:
            operations = msgspec.convert(message.body["batch"], list[AnyOperation])
        except msgspec.ValidationError as error:
            raise broken(self.index, None, message, f"is no batch of operations: {error}") from error
        self._batch = _Batch(number, operations, sender)
        self._counts["operations"] += len(operations)
        return self._go_on(message)

    def _go_on(self, message: Message) -> Replies:
        """Carry out what can be; answers to whoever has waited for it."""
        batch = self._batch
        assert batch is not None
        while batch.at < len(batch.operations):
            if batch.sums:
                if not self._summed(batch):
                    return self._woken()
                continue
            run = batch.operations[batch.at :]
            count = next((n for n, one in enumerate(run) if isinstance(one, Evaluate)), len(run))
            if count:
                self._act(batch, run[:count], message)
            else:
                count = next((n for n, one in enumerate(run) if not isinstance(one, Evaluate)), len(run))
                self._open(batch, count)
            if not batch.sums:
                batch.at += count
        self._number, self._answer, self._batch, self._last = batch.number, batch.shares, None, batch
        return [(batch.coordinator, self._answered()), *self._woken()]

    def _act(self, batch: _Batch, run: list[AnyOperation], message: Message) -> None:
        found: list[list[float]] = []
        for vectors in self._vectors.values():
            try:
                found.append(shares(run, vectors))
            except KeyError as error:
                facts = f"names vector {error}; there are {', '.join(sorted(vectors))}"
                raise broken(self.index, None, message, facts) from error
        giving = numbers(run)
        batch.shares += [one.joined(row[n] for row in found) for n, one in enumerate(giving)]

    def _open(self, batch: _Batch, count: int) -> None:
        """Let workers compute gradients."""
        for place in range(batch.at, batch.at + count):
            operation = batch.operations[place]
            assert isinstance(operation, Evaluate)
            leaves = operation.last - operation.first
            batch.sums[place] = {n: PortionSum(leaves) for n in self._pieces}

    def _summed(self, batch: _Batch) -> bool:
        """Go on behind the gradients if they are complete."""
        totals = {place: {n: one.total for n, one in of.items()} for place, of in batch.sums.items()}
        if any(total is None for of in totals.values() for total in of.values()):
            return False
        for place, of in totals.items():
            operation = batch.operations[place]
            assert isinstance(operation, Evaluate)
            samples = self._portions.within(operation.first, operation.last)
            for n, total in of.items():
                assert total is not None
                self._vectors[n][operation.out] = total / samples
        batch.shares += [0.0] * len(totals)
        batch.at += len(totals)
        batch.sums = {}
        return True

    def _answered(self) -> Message:
        body = {"epoch": self._epoch, "number": self._number, "shares": self._answer}
        return Message("operated", body=body)

    def _of_worker(self, message: Message) -> Replies:
        if message.edge not in self._pieces:
            raise broken(self.index, None, message, f"names slice {message.edge}, which is not of this shard")
        if message.kind == "read":
            if not self._vectors:
                self._waiting.append(message)
                return []
            return [self._tensor(message, "values", self._vectors[message.edge][AT])]
        if message.kind == "gradient":
            return self._gradient(message)
        time, now = self._time(message), self._now
        if time > now or not self._vectors:
            self._waiting.append(message)
            return []
        batch, place = self._batch or self._last, message.body["place"]
        if time < now or batch is None or place >= len(batch.operations):
            self._counts["late"] += 1
            return [(message.sender, Message("point", message.step, edge=message.edge, body={"stale": True}))]
        if batch is self._batch and place >= batch.at + len(batch.sums):
            self._waiting.append(message)
            return []
        operation = batch.operations[place]
        if not isinstance(operation, Evaluate):
            raise broken(self.index, self._pieces[message.edge], message, f"is of operation {place}: {operation}")
        return [self._tensor(message, "point", self._vectors[message.edge][operation.at])]

    def _time(self, message: Message) -> tuple[int, int]:
        return message.body["epoch"], message.body["number"]

    @property
    def _now(self) -> tuple[int, int]:
        """Epoch and number of what is being carried out, or was last."""
        return self._epoch, self._number if self._batch is None else self._batch.number

    def _tensor(self, message: Message, kind: str, tensor: Tensor) -> tuple[str, Message]:
        self._counts["bytes_out"] += tensor.nbytes
        return message.sender, Message(kind, message.step, edge=message.edge, tensors=(tensor,), borrowed=True)

    def _gradient(self, message: Message) -> Replies:
        batch, body, piece = self._batch, message.body, self._pieces[message.edge]
        replies: Replies = [(message.sender, Message("summed", message.step, edge=message.edge))]
        place = body["place"]
        if self._time(message) != self._now or batch is None or place not in batch.sums:
            self._counts["late"] += 1
            return replies
        at = self._vectors[message.edge][AT]
        found = [(tensor.dtype, list(tensor.shape)) for tensor in message.tensors]
        if found != [(at.dtype, [piece.size])]:
            raise broken(self.index, piece, message, f"has {found}; the slice is {at.dtype} [{piece.size}]")
        try:
            batch.sums[place][message.edge].add(body["level"], body["index"], message.tensors[0])
        except ValueError as error:
            raise broken(self.index, piece, message, f"is of {error}") from error
        self._counts["gradients"] += 1
        return [*replies, *self._go_on(message)]

    def _woken(self) -> Replies:
        """Answers to those who have waited."""
        waiting, self._waiting = self._waiting, []
        return [reply for message in waiting for reply in self._of_worker(message)]

    def _commit(self, message: Message) -> Replies:
        number, keep = message.body["number"], message.body["keep"]
        if message.body["epoch"] != self._epoch:
            return []
        if number != self._number or self._batch is not None:
            raise broken(self.index, None, message, f"is of batch {number}; the last was {self._number}")
        if number != self._committed:  # else it was said again
            self._write(number, keep)
        return [(message.sender, Message("committed", body={"epoch": self._epoch, "number": number}))]

    def _write(self, number: int, keep: int) -> None:
        """Write a commit, in place of any of that number that was given up, and remove what is older."""
        held = []
        for n, piece in sorted(self._pieces.items()):
            others = {name: vector for name, vector in self._vectors[n].items() if name != AT}
            held.append(Holding(piece, self._vectors[n][AT], others, number))
        folder = commit_folder(self._folder, self.index, number)
        if folder.exists():
            shutil.rmtree(folder)
        write_shard(folder, self.index, held, RULE)
        self._committed = number
        kept = {folder, commit_folder(self._folder, self.index, keep)}
        for other in set(self._folder.glob(f"shard-{self.index}.*")) - kept:
            shutil.rmtree(other)

    def _read(self, number: int) -> dict[int, Vectors]:
        files = sorted(commit_folder(self._folder, self.index, number).glob("shard-*.safetensors"))
        if len(files) != 1:
            facts = f"shard-{self.index} has no file of operation {number} in {self._folder}"
            raise CheckpointError("E811", facts, fix="start the run again, with --init and its last checkpoint")
        held = read_shard(files[0]).holdings
        return {holding.slice.number: {AT: holding.value, **holding.state} for holding in held}


def commit_folder(folder: Path, shard: int, number: int) -> Path:
    """Where a shard writes what it holds after a batch of operations."""
    return folder / f"shard-{shard}.{number}"


def from_whole(values: Mapping[int, Tensor]) -> Initial:
    """Of the flat parameters of each machine."""
    return lambda piece: values[piece.machine][piece.start : piece.stop].clone()
