"""What an operator gives, made for other operands of the same kind, is what torch gives for these."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from cutset.partition.repeats.known_result import find_known_result


class MakeKnown(TorchDispatchMode):
    """Gives, for every operator, what is known of the call before of the same one. unknown: operators that it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Any] = []
        self.unknown: list[str] = []
        self.step = -1

    def begin(self) -> None:
        self.step = 0 if self.known else -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if self.step < 0:
            result = func(*args, **kwargs)
            self.known.append(find_known_result(func, args, kwargs, result))
            return result
        known = self.known[self.step]
        self.step += 1
        if known is not None:
            return known.make(args)
        self.unknown.append(str(func))
        return func(*args, **kwargs)


def run(compute: Callable[..., Any], mode: FakeTensorMode, log: MakeKnown | None) -> list[Tensor]:
    with mode:
        operands = [torch.empty(4, 6), torch.empty(6, 4).t(), torch.empty(2, 4, 6)[1], torch.ones(4, dtype=torch.long)]
        operands[0].requires_grad_()
    if log is None:
        with mode:
            results = compute(*operands)
    else:
        log.begin()
        with mode, log:
            results = compute(*operands)
    results = list(results) if isinstance(results, tuple | list) else [results]
    return [*operands, *results]


def describe(tensors: list[Tensor]) -> list[Any]:
    memories = dict[int, int]()
    return [
        (
            type(one),
            one.shape,
            one.stride(),
            one.storage_offset(),
            one.dtype,
            one.device,
            one.untyped_storage().nbytes(),
            memories.setdefault(one.untyped_storage()._cdata, len(memories)),
            (one.requires_grad, one._is_view()),
        )
        for one in tensors
    ]


def make_mode() -> FakeTensorMode:
    sizes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)


KNOWN: dict[str, Callable[..., Any]] = {
    "sum of unlike layouts": lambda a, b, c, d: b + c,
    "product": lambda a, b, c, d: a @ c.t(),
    "linear": lambda a, b, c, d: torch.nn.functional.linear(a.expand(3, 4, 6), c),
    "views": lambda a, b, c, d: (a.view(2, 12), b[1:, ::2], c.t(), c.narrow(1, 2, 3).unsqueeze(0)),
    "views of views": lambda a, b, c, d: a[1:].view(3, 2, 3).transpose(0, 2)[1],
    "parts": lambda a, b, c, d: torch.split(c, 2, dim=1),
    "copies": lambda a, b, c, d: (b.contiguous(), b.clone(), a.reshape(24), b.reshape(24)),
    "pairs": lambda a, b, c, d: torch.nn.functional.layer_norm(a, (6,)),
    "maxima": lambda a, b, c, d: c.max(dim=1),
    "reductions": lambda a, b, c, d: (b.sum(), b.mean(0, keepdim=True), c.float().softmax(-1)),
    "joined": lambda a, b, c, d: torch.cat([a, b], dim=1),
    "empty": lambda a, b, c, d: a[:0] + c[:0],
    "types": lambda a, b, c, d: (a.double(), d + 0.5, c.to(torch.bfloat16), a > 0),
    "attention": lambda a, b, c, d: torch.nn.functional.scaled_dot_product_attention(a[None], b[None], c[None]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_made_is_what_torch_gives(name: str) -> None:
    mode, log = make_mode(), MakeKnown()
    run(KNOWN[name], mode, log)
    made = run(KNOWN[name], mode, log)
    assert log.step == len(log.known) > 0
    assert not log.unknown
    assert describe(made) == describe(run(KNOWN[name], mode, None))


UNKNOWN: dict[str, Callable[..., Any]] = {
    "overwritten": lambda a, b, c, d: c.add_(1.0),
    "sizes by data": lambda a, b, c, d: d.nonzero(),
    "numbers of data": lambda a, b, c, d: d.sum().item(),
    "values": lambda a, b, c, d: torch.tensor([1.0, 2.0]),
    "complex views": lambda a, b, c, d: torch.complex(b, c).conj(),
    "sparse": lambda a, b, c, d: c.to_sparse(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_be_something_else_is_not_known(name: str) -> None:
    mode, log = make_mode(), MakeKnown()
    with mode:
        b, c, d = torch.empty(4, 6), torch.empty(4, 6), torch.ones(4, dtype=torch.long)
    with mode, log:
        UNKNOWN[name](None, b, c, d)
    assert log.known[-1] is None


def test_a_tensor_with_values_has_no_known_views() -> None:
    real = torch.ones(4)
    assert find_known_result(torch.ops.aten.view.default, (real, [2, 2]), {}, real.view(2, 2)) is None
    with make_mode() as mode:
        fake = torch.empty(2, 2)
    assert isinstance(fake, FakeTensor)
    assert fake.fake_mode is mode
    assert find_known_result(torch.ops.aten.view.default, (real, [2, 2]), {}, fake) is None
