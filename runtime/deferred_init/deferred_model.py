"""A model whose weights are drawn later, one after the other, bit for bit as if it had been built at once.

The model is built on fake tensors while every operator that makes or changes a value is recorded.
`DeferredModel.replay` runs them for real in the recorded order, with torch's generator in the states that it would have
been in, and hands on every wanted tensor as soon as its value is final. So only what later operators need is in memory.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .generator_tracking import Unrecordable
from .init_event import EventExecutor, InitEvent, TensorView
from .init_recorder import CopyWatch, InitRecorder, Memories, record_initialisers

Sink = Callable[[str, Tensor], None]


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

        The value is the sink's only until it returns. Raises Unrecordable where an operator behaves otherwise than it
        did when it was recorded.
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
                executor.execute(event)
                for number, final in ended:
                    if final:
                        left.discard(number)
                        _hand_on(executor, names[number], sink)
                    executor.free(number)
            for number in left:  # never written: what plain torch leaves as it finds it is zero here
                _hand_on(executor, names[number], sink)
                executor.free(number)

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
