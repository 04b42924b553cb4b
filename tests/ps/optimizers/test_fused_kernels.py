"""The fused kernels and the blocks that take their place give the same numbers."""

import pytest
import torch

from cutset.ps.optimizers import fused_kernels as fused

SIZE = 2 * fused.BLOCK + 5
DECAYS = [0.0, 0.01]
DTYPES = [torch.float32, torch.float64]


def sgd(value, gradient, first, second, decay):
    fused.sgd(value, gradient, first, lr=0.1, beta=0.9, nesterov=False, decay=decay)


def plain_sgd(value, gradient, first, second, decay):
    fused.sgd(value, gradient, None, lr=0.1, beta=0.0, nesterov=False, decay=decay)


def nesterov(value, gradient, first, second, decay):
    fused.sgd(value, gradient, first, lr=0.1, beta=0.9, nesterov=True, decay=decay)


def adagrad(value, gradient, first, second, decay):
    fused.adagrad(value, gradient, first, lr=0.1, eps=1e-10, decay=decay)


ADAM = {"number": 3, "lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}


def adam(value, gradient, first, second, decay):
    fused.adam(
        value, gradient, first, second, number=3, lr=0.1, betas=(0.9, 0.999), eps=1e-8, decay=decay, decoupled=False
    )


def adamw(value, gradient, first, second, decay):
    fused.adam(
        value, gradient, first, second, number=3, lr=0.1, betas=(0.9, 0.999), eps=1e-8, decay=decay, decoupled=True
    )


UPDATES = {
    sgd: "_fused_sgd_",
    plain_sgd: "_fused_sgd_",
    nesterov: "_fused_sgd_",
    adagrad: "_fused_adagrad_",
    adam: "_fused_adam_",
    adamw: "_fused_adamw_",
}


def tensors(dtype):
    generator = torch.Generator().manual_seed(0)
    value, gradient = (torch.randn(SIZE, dtype=dtype, generator=generator) for _ in range(2))
    first, second = (torch.rand(SIZE, dtype=dtype, generator=generator) + 0.1 for _ in range(2))
    return value, gradient, first, second


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update", UPDATES)
def test_blocks_equal_the_fused_kernels(update, dtype, decay, monkeypatch):
    one, other = tensors(dtype), tensors(dtype)
    update(*one, decay)
    monkeypatch.delattr(torch, UPDATES[update])
    update(*other, decay)
    eps = 8 * torch.finfo(dtype).eps
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=eps, atol=eps)


@pytest.mark.parametrize("update", UPDATES)
def test_a_kernel_is_used_if_torch_has_it(update, monkeypatch):
    name, calls = UPDATES[update], []
    kernel = getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *lists, **rates: calls.append(kernel(*lists, **rates)))
    update(*tensors(torch.float32), 0.01)
    assert calls


@pytest.mark.parametrize("update", UPDATES)
def test_other_types_are_computed_in_blocks(update, monkeypatch):
    exact, rounded = tensors(torch.float64), [tensor.bfloat16() for tensor in tensors(torch.float64)]
    monkeypatch.setattr(torch, UPDATES[update], lambda *lists, **rates: pytest.fail("not for bfloat16"))
    update(*rounded, 0.01)
    monkeypatch.undo()
    update(*exact, 0.01)
    torch.testing.assert_close(rounded[0].double(), exact[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("update", UPDATES)
def test_a_gradient_is_left_as_it_is(update):
    value, gradient, *memory = tensors(torch.float32)
    before = gradient.clone()
    update(value, gradient, *memory, 0.01)
    assert torch.equal(gradient, before)


def test_blocks_cover_all():
    seen = []
    fused.in_blocks(lambda a, b: seen.append((a[0].item(), b.numel())), torch.arange(SIZE), torch.zeros(SIZE))
    assert seen == [(0, fused.BLOCK), (fused.BLOCK, fused.BLOCK), (2 * fused.BLOCK, 5)]
