"""A model whose weights are drawn later, one after the other, bit for bit as if it had been built at once.

The model is built on fake tensors while every operator that makes or changes a value is recorded.
`DeferredModel.replay` runs them for real in the recorded order, with torch's generator in the states that it would have
been in, and hands on every wanted tensor as soon as its value is final. So only what later operators need is in memory.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .generator_tracking import Unrecordable
from .init_event import EventExecutor, InitEvent, TensorView, draws_alike_in_parts
from .init_recorder import CopyWatch, InitRecorder, Memories, record_initialisers

PART = 1 << 24  # elements that are drawn at a time of a tensor that is nothing but drawn


class Sink(Protocol):
    """Takes a value, or the part of its flat elements that begins at `start`."""

    def __call__(self, name: str, value: Tensor, /, *, start: int = 0) -> None: ...


@dataclass(frozen=True)
class DeferredModel:
    """A model on fake tensors, and the events that compute their values.

    nbytes: of each memory, by number. followed: see `GeneratorReplay`.
    """

    model: nn.Module
    events: Sequence[InitEvent]
    nbytes: Sequence[int]
    memories: Memories
    followed: frozenset[int]

    def replay(self, tensors: Mapping[str, Tensor], sink: Sink) -> None:
        """Compute the values of the wanted tensors of `model`; `sink(name, value)` gets each, in no particular order.

        A large one that is drawn at random and not changed any more comes in parts, `sink(name, part, start=i)`, and is
        never whole. The value is the sink's only until it returns. Raises Unrecordable where an operator behaves
        otherwise than it did when it was recorded.
        """
        names: dict[int, list[tuple[str, TensorView]]] = defaultdict(list)
        for name, tensor in tensors.items():
            number = self.memories.number(tensor)
            if isinstance(tensor, FakeTensor) and number is not None:
                names[number].append((name, TensorView.of(tensor, number)))
            elif isinstance(tensor, FakeTensor):
                raise Unrecordable(f"{name} comes from elsewhere")
            else:
                sink(name, tensor.detach())
        ends = self._find_last_uses(names)
        executor, left = EventExecutor(self.nbytes, self.followed), set(names)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for event, ended in zip(self.events, ends, strict=True):
                whole = self._find_parted(event, ended, names)
                if whole is not None:
                    name, view = whole
                    for start, part in executor.draw_in_parts(event, view, part=PART):
                        sink(name, part, start=start)
                    left.discard(view.memory)
                    continue
                executor.execute(event)
                for number, final in ended:
                    if final:
                        left.discard(number)
                        _hand_on(executor, names[number], sink)
                    executor.free(number)
            for number in left:  # never written: what plain torch leaves as it finds it is zero here
                _hand_on(executor, names[number], sink)
                executor.free(number)

    def _find_parted(
        self, event: InitEvent, ended: Sequence[tuple[int, bool]], names: Mapping[int, Sequence[tuple[str, TensorView]]]
    ) -> tuple[str, TensorView] | None:
        """Return the name and view of a large tensor if the event draws it alone, in parts, and it is final then."""
        if len(ended) != 1 or not ended[0][1]:
            return None
        number = ended[0][0]
        if len(names[number]) != 1 or event.memories != {number}:
            return None
        name, view = names[number][0]
        large = self.nbytes[number] > PART * view.dtype.itemsize
        return (name, view) if large and draws_alike_in_parts(event, view, self.nbytes[number]) else None

    def _find_last_uses(self, names: Mapping[int, object]) -> list[list[tuple[int, bool]]]:
        """Return for each event the memories whose content is not needed after it, and whether that is a wanted one."""
        last, current = dict[tuple[int, int], int](), defaultdict[int, int](int)
        for i, event in enumerate(self.events):
            if event.overwrites is not None:
                current[event.overwrites] += 1
            for number in event.memories:
                last[number, current[number]] = i
        ends: list[list[tuple[int, bool]]] = [[] for _ in self.events]
        for (number, version), i in last.items():
            ends[i].append((number, number in names and version == current[number]))
        return ends


def _hand_on(executor: EventExecutor, views: Sequence[tuple[str, TensorView]], sink: Sink) -> None:
    for name, view in views:
        sink(name, executor.tensor(view))


def record(build: Callable[[], nn.Module]) -> DeferredModel:
    """Build a model without values and return it with the recording.

    Raises Unrecordable where the model's code looks at values, or does what cannot be repeated.
    """
    recorder, mode = InitRecorder(), FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with (
            mode,
            recorder,
            CopyWatch(recorder),
            record_initialisers(recorder),
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copy.deepcopy does
            model = build()
    except Unrecordable:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise recorder.failure or Unrecordable(f"without values it fails: {reason}") from error
    finally:
        recorder.tracker.restore()
    if recorder.failure is not None:
        raise recorder.failure
    return DeferredModel(model, recorder.events, recorder.memories.nbytes, recorder.memories, recorder.tracker.followed)
