"""A model whose weights are drawn later, one after the other, bit for bit as if it had been built at once.

The model is built on fake tensors while every operator that makes or changes a value is recorded. `Deferred.replay`
runs them for real in the recorded order, with torch's generator in the states that it would have been in, and hands
every wanted tensor on as soon as its value is final. So no more is in memory than what the operators still need.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .generator_tracking import Unrecordable
from .init_event import Event, Execution, Place
from .init_recorder import Copying, Memories, Recorder, initialisers

Sink = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Deferred:
    """A model on fake tensors, and how their values come about. nbytes: of each memory; followed: see DrawsAgain."""

    model: nn.Module
    events: Sequence[Event]
    nbytes: Sequence[int]
    memories: Memories
    followed: frozenset[int]

    def replay(self, wanted: Mapping[str, Tensor], sink: Sink) -> None:
        """Compute the values of the wanted tensors of `model`; `sink(name, value)` gets each, in no particular order.

        What a sink is given is its own only until it returns. Unrecordable where an operator behaves otherwise than it
        was recorded.
        """
        names: dict[int, list[tuple[str, Place]]] = defaultdict(list)
        for name, tensor in wanted.items():
            number = self.memories.number(tensor)
            if isinstance(tensor, FakeTensor) and number is not None:
                names[number].append((name, Place.of(tensor, number)))
            elif isinstance(tensor, FakeTensor):
                raise Unrecordable(f"{name} comes from elsewhere")
            else:
                sink(name, tensor.detach())
        ends = self._ends(names)
        execution, left = Execution(self.nbytes, self.followed), set(names)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for event, ended in zip(self.events, ends, strict=True):
                execution.execute(event)
                for number, final in ended:
                    if final:
                        left.discard(number)
                        _hand_on(execution, names[number], sink)
                    execution.free(number)
            for number in left:  # never written: what plain torch leaves as it finds it is zero here
                _hand_on(execution, names[number], sink)
                execution.free(number)

    def _ends(self, names: Mapping[int, object]) -> list[list[tuple[int, bool]]]:
        """By event: memories whose content is not needed after it; whether that is the final one of a wanted memory."""
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


def _hand_on(execution: Execution, named: Sequence[tuple[str, Place]], sink: Sink) -> None:
    for name, place in named:
        sink(name, execution.tensor(place))


def record(build: Callable[[], nn.Module]) -> Deferred:
    """Build a model without values; Unrecordable where its code looks at them, or does what cannot be repeated."""
    recorder, mode = Recorder(), FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with (
            mode,
            recorder,
            Copying(recorder),
            initialisers(recorder),
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copy.deepcopy does
            model = build()
    except Unrecordable:
        raise
    except (Exception, SystemExit) as error:
        said = str(error).strip().partition("\n")[0]
        raise recorder.failure or Unrecordable(f"without values it fails: {type(error).__name__}: {said}") from error
    finally:
        recorder.draws.put_back()
    if recorder.failure is not None:
        raise recorder.failure
    return Deferred(model, recorder.events, recorder.memories.nbytes, recorder.memories, recorder.draws.followed)
