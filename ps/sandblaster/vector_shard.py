"""`VectorShard`: a parameter server shard for batch methods. It holds named vectors beside the parameters, carries out
the coordinator's operations on them, and adds up gradients; `handle` is the whole protocol, without I/O except for the
files of commits. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2.

Messages of the coordinator, and the answers:
  roll back  {epoch, number}         "rolled back" {epoch}: everything is again as after that batch
  operate    {epoch, number, batch}  "operated" {epoch, number, partials}, once its gradients are complete
  commit     {epoch, number, keep}   "committed" {epoch, number}: a file has it; older files go, except that of `keep`
Messages of workers about a slice, the `edge` of the message:
  point      {epoch, number, place}  "point" values [n] to compute gradients at, or {stale} if nobody needs them
  gradient   {epoch, number, place, level, index} [n]   "summed"
  read       {}                      "values" [n]: the parameters as they are
number: of a batch of operations, 1, 2, 3, ...; a batch that was carried out is answered again, not carried out again,
so a lost answer does no harm. epoch: grows with each rollback; messages of an earlier epoch change nothing. place: of
an `Evaluate` in its batch. level, index: of a node of the sum (tree_sum.py).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...errors import CheckpointError
from ...runtime.channel.message import Message
from ..checkpoint.shard_file import read_shard
from ..checkpoint.write_checkpoint import write_shard
from ..optimizers.standard import SGD
from ..server.replies import Replies, protocol_error
from ..slices.slice_state import SliceState
from ..slices.slicing import ParameterSlice
from .solver import Portions
from .tree_sum import TreeSum
from .vector_ops import ITERATE, AnyOperation, Evaluate, Vectors, carry_out, scalar_operations

OPTIMIZER = SGD(1.0)  # which files of shards name; it is never applied

InitialValues = Callable[[ParameterSlice], Tensor]
"""Return the values [n] that a slice begins with."""


class _RunningBatch(msgspec.Struct):
    """A batch that is being carried out.

    next: the place of the next operation. partials: results so far. sums: of the evaluations that are open, by place
    and slice.
    """

    number: int
    operations: list[AnyOperation]
    coordinator: str
    next: int = 0
    partials: list[float] = []
    sums: dict[int, dict[int, TreeSum]] = {}


class VectorShard:
    """A shard that holds slices of every vector. folder: of the commits' files. portions: of the batches."""

    optimizer = OPTIMIZER

    def __init__(
        self, index: int, slices: Sequence[ParameterSlice], portions: Portions, initial: InitialValues, folder: Path
    ) -> None:
        self.index = index
        self._pieces = {piece.number: piece for piece in slices}
        self._portions, self._initial, self._folder = portions, initial, folder
        self._vectors: dict[int, Vectors] = {}  # by slice
        self._epoch = 0
        self._number = 0  # of the last batch that was carried out
        self._committed = 0  # number of the last commit in this epoch, or where the epoch began
        self._answer: list[float] = []
        self._batch: _RunningBatch | None = None
        self._last: _RunningBatch | None = None  # whose points some may need again, for a loss that got lost
        self._waiting: list[Message] = []  # of workers, for what is to come
        self._counts = {"operations": 0, "round_trips": 0, "gradients": 0, "late": 0, "bytes_in": 0, "bytes_out": 0}

    def handle(self, message: Message) -> Replies:
        """Take in one message; return the answers."""
        self._counts["bytes_in"] += message.bytes
        match message.kind:
            case "roll back":
                return self._roll_back(message)
            case "operate":
                return self._begin_batch(message)
            case "commit":
                return self._commit(message)
            case "point" | "gradient" | "read":
                return self._serve_worker(message)
        raise protocol_error(self.index, None, message, "is of an unknown kind")

    def poll(self) -> Replies:
        """Return nothing: nothing happens unless it is requested."""
        return []

    def close(self) -> Replies:
        """Return nothing: nothing is under way."""
        return []

    busy = False

    def slice_states(self) -> list[SliceState]:
        """Return every slice with its parameters, for a checkpoint."""
        return [self._make_state(n, {}, self._number) for n in sorted(self._pieces)]

    def statistics(self) -> dict[str, Any]:
        """Return plain data: counts of what was done, and how many vectors there are."""
        count = max((len(vectors) for vectors in self._vectors.values()), default=0)
        return {"shard": self.index, "vectors": count, **self._counts}

    def status(self) -> dict[str, Any]:
        """Return plain data on how the work goes."""
        return {"batches": self._number}

    def __repr__(self) -> str:
        return f"VectorShard({self.index}, epoch={self._epoch}, number={self._number}, batch={self._batch})"

    def _make_state(self, number: int, others: Vectors, version: int) -> SliceState:
        return SliceState(self._pieces[number], self._vectors[number][ITERATE], others, version)

    # The coordinator's batches

    def _roll_back(self, message: Message) -> Replies:
        epoch, number = message.body["epoch"], message.body["number"]
        if epoch > self._epoch:
            self._vectors = self._read_commit(number) if number else self._initialise_vectors()
            self._epoch, self._number, self._answer, self._batch, self._last = epoch, number, [], None, None
            self._committed = number
        return [(message.sender, Message("rolled back", body={"epoch": epoch})), *self._serve_waiting()]

    def _initialise_vectors(self) -> dict[int, Vectors]:
        return {n: {ITERATE: self._initial(piece)} for n, piece in self._pieces.items()}

    def _begin_batch(self, message: Message) -> Replies:
        number, sender = message.body["number"], message.sender
        if message.body["epoch"] != self._epoch:
            return []
        self._counts["round_trips"] += 1
        if self._batch is not None and number == self._batch.number:
            self._batch.coordinator = sender
            return []
        if number == self._number and self._batch is None:
            return [(sender, self._make_answer())]
        if number != self._number + 1 or self._batch is not None:
            raise protocol_error(self.index, None, message, f"has number {number}; the last was {self._number}")
        try:
            operations = msgspec.convert(message.body["batch"], list[AnyOperation])
        except msgspec.ValidationError as error:
            raise protocol_error(self.index, None, message, f"is no batch of operations: {error}") from error
        self._batch = _RunningBatch(number, operations, sender)
        self._counts["operations"] += len(operations)
        return self._proceed(message)

    def _proceed(self, message: Message) -> Replies:
        """Carry out the batch as far as its gradients are there; return answers to those who have waited for it."""
        batch = self._batch
        assert batch is not None
        while batch.next < len(batch.operations):
            if batch.sums:
                if not self._close_evaluations(batch):
                    return self._serve_waiting()
                continue
            rest = batch.operations[batch.next :]
            count = next((n for n, one in enumerate(rest) if isinstance(one, Evaluate)), len(rest))
            if count:
                self._carry_out(batch, rest[:count], message)
                batch.next += count
            else:
                count = next((n for n, one in enumerate(rest) if not isinstance(one, Evaluate)), len(rest))
                self._open_evaluations(batch, count)
                if not batch.sums:
                    batch.next += count
        self._number, self._answer, self._batch, self._last = batch.number, batch.partials, None, batch
        return [(batch.coordinator, self._make_answer()), *self._serve_waiting()]

    def _carry_out(self, batch: _RunningBatch, run: list[AnyOperation], message: Message) -> None:
        """Carry out operations on all slices."""
        # "procedure ParameterServer.PerformOperation(operation)"
        rows: list[list[float]] = []
        for vectors in self._vectors.values():
            try:
                rows.append(carry_out(run, vectors))
            except KeyError as error:
                facts = f"names vector {error}; there are {', '.join(sorted(vectors))}"
                raise protocol_error(self.index, None, message, facts) from error
        scalars = scalar_operations(run)
        batch.partials += [one.combine_partials(row[n] for row in rows) for n, one in enumerate(scalars)]

    def _open_evaluations(self, batch: _RunningBatch, count: int) -> None:
        """Let workers compute gradients for the next `count` operations."""
        # "PS.accruedGradients ← 0"
        for place in range(batch.next, batch.next + count):
            operation = batch.operations[place]
            assert isinstance(operation, Evaluate)
            leaves = operation.last - operation.first
            batch.sums[place] = {n: TreeSum(leaves) for n in self._pieces}

    def _close_evaluations(self, batch: _RunningBatch) -> bool:
        """Make the mean gradients if all are complete; return whether they are."""
        totals = {place: {n: one.total for n, one in sums.items()} for place, sums in batch.sums.items()}
        if any(total is None for of_slices in totals.values() for total in of_slices.values()):
            return False
        for place, of_slices in totals.items():
            operation = batch.operations[place]
            assert isinstance(operation, Evaluate)
            samples = self._portions.count_samples(operation.first, operation.last)
            for n, total in of_slices.items():
                assert total is not None
                self._vectors[n][operation.out] = total / samples
        batch.partials += [0.0] * len(totals)
        batch.next += len(totals)
        batch.sums = {}
        return True

    def _make_answer(self) -> Message:
        body = {"epoch": self._epoch, "number": self._number, "partials": self._answer}
        return Message("operated", body=body)

    # Workers

    def _serve_worker(self, message: Message) -> Replies:
        if message.edge not in self._pieces:
            facts = f"names slice {message.edge}, which is not of this shard"
            raise protocol_error(self.index, None, message, facts)
        match message.kind:
            case "gradient":
                return self._add_gradient(message)
            case "read" if self._vectors:
                return [self._make_reply(message, "values", self._vectors[message.edge][ITERATE])]
            case "point" if self._vectors and self._time_of(message) <= self._now:
                return self._send_point(message)
        self._waiting.append(message)
        return []

    def _send_point(self, message: Message) -> Replies:
        """Answer with the point of an evaluation, unless it is to come or over."""
        batch, place = self._batch or self._last, message.body["place"]
        if self._time_of(message) < self._now or batch is None or place >= len(batch.operations):
            self._counts["late"] += 1
            return [(message.sender, Message("point", message.step, edge=message.edge, body={"stale": True}))]
        if batch is self._batch and place >= batch.next + len(batch.sums):
            self._waiting.append(message)
            return []
        operation = batch.operations[place]
        if not isinstance(operation, Evaluate):
            facts = f"is of operation {place}: {operation}"
            raise protocol_error(self.index, self._pieces[message.edge], message, facts)
        return [self._make_reply(message, "point", self._vectors[message.edge][operation.at])]

    def _time_of(self, message: Message) -> tuple[int, int]:
        return message.body["epoch"], message.body["number"]

    @property
    def _now(self) -> tuple[int, int]:
        """Epoch and number of the batch that is being carried out, or was last."""
        return self._epoch, self._number if self._batch is None else self._batch.number

    def _make_reply(self, message: Message, kind: str, tensor: Tensor) -> tuple[str, Message]:
        self._counts["bytes_out"] += tensor.nbytes
        return message.sender, Message(kind, message.step, edge=message.edge, tensors=(tensor,), borrowed=True)

    def _add_gradient(self, message: Message) -> Replies:
        """Add a gradient to its sum."""
        # "PS.accruedGradients ← PS.accruedGradients + gradient"
        batch, body, piece = self._batch, message.body, self._pieces[message.edge]
        replies: Replies = [(message.sender, Message("summed", message.step, edge=message.edge))]
        place = body["place"]
        if self._time_of(message) != self._now or batch is None or place not in batch.sums:
            self._counts["late"] += 1
            return replies
        parameters = self._vectors[message.edge][ITERATE]
        kinds = [(tensor.dtype, list(tensor.shape)) for tensor in message.tensors]
        if kinds != [(parameters.dtype, [piece.size])]:
            facts = f"has {kinds}; the slice is {parameters.dtype} [{piece.size}]"
            raise protocol_error(self.index, piece, message, facts)
        try:
            batch.sums[place][message.edge].add(body["level"], body["index"], message.tensors[0])
        except ValueError as error:
            raise protocol_error(self.index, piece, message, f"is of {error}") from error
        self._counts["gradients"] += 1
        return [*replies, *self._proceed(message)]

    def _serve_waiting(self) -> Replies:
        """Return answers to the workers that have waited."""
        waiting, self._waiting = self._waiting, []
        return [reply for message in waiting for reply in self._serve_worker(message)]

    # Commits

    def _commit(self, message: Message) -> Replies:
        number, keep = message.body["number"], message.body["keep"]
        if message.body["epoch"] != self._epoch:
            return []
        if number != self._number or self._batch is not None:
            raise protocol_error(self.index, None, message, f"is of batch {number}; the last was {self._number}")
        if number != self._committed:  # else the request was sent again
            self._write_commit(number, keep)
        return [(message.sender, Message("committed", body={"epoch": self._epoch, "number": number}))]

    def _write_commit(self, number: int, keep: int) -> None:
        """Write a commit over any that was given up with the same number, and remove older ones except `keep`."""
        states = []
        for n in sorted(self._pieces):
            others = {name: vector for name, vector in self._vectors[n].items() if name != ITERATE}
            states.append(self._make_state(n, others, number))
        folder = commit_folder(self._folder, self.index, number)
        if folder.exists():
            shutil.rmtree(folder)
        write_shard(folder, self.index, states, OPTIMIZER)
        self._committed = number
        kept = {folder, commit_folder(self._folder, self.index, keep)}
        for other in set(self._folder.glob(f"shard-{self.index}.*")) - kept:
            shutil.rmtree(other)

    def _read_commit(self, number: int) -> dict[int, Vectors]:
        files = sorted(commit_folder(self._folder, self.index, number).glob("shard-*.safetensors"))
        if len(files) != 1:
            facts = f"shard-{self.index} has no file of operation {number} in {self._folder}"
            raise CheckpointError("E811", facts, fix="start the run again, with --init and its last checkpoint")
        states = read_shard(files[0]).slice_states
        return {state.slice.number: {ITERATE: state.value, **state.state} for state in states}


def commit_folder(folder: Path, shard: int, number: int) -> Path:
    """Return the folder in which a shard writes what it holds after a batch of operations."""
    return folder / f"shard-{shard}.{number}"


def slice_initial_values(values: Mapping[int, Tensor]) -> InitialValues:
    """Return a function that cuts the initial values of slices out of the flat parameters of each machine."""
    return lambda piece: values[piece.machine][piece.start : piece.stop].clone()
