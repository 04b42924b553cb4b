"""Updates in one pass over memory: torch's fused kernels if it has them, else the same operations block by block.

`torch._fused_*_` are private functions that torch.optim calls; with a version that lacks one, the blocks are used. Both
give the numbers of torch.optim. All tensors are flat, [n], and `gradient` is not written to. decay: of weights.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

BLOCK = 1 << 16  # elements that stay in the cache between the operations of an update
LANES = 16  # elements that fill the widest vector instructions
DTYPES = (torch.float32, torch.float64)  # with others the kernels compute the last elements in another precision

Kernel = Callable[..., object]


def in_blocks(step: Kernel, *tensors: Tensor) -> None:
    """Call `step` with the first blocks of all tensors, then with the second ones, and so on."""
    for parts in zip(*(torch.split(flat, BLOCK) for flat in tensors), strict=True):
        step(*parts)


def sgd(
    value: Tensor, gradient: Tensor, momentum: Tensor | None, *, lr: float, beta: float, nesterov: bool, decay: float
) -> None:
    """Update as torch.optim.SGD. momentum: the moving sum of gradients [n], or None if beta is 0."""
    tensors = (value, gradient) if momentum is None else (value, gradient, momentum)
    kernel = _find_kernel("_fused_sgd_", value)
    if kernel is None:
        in_blocks(partial(_sgd_block, lr=lr, beta=beta, nesterov=nesterov, decay=decay), *tensors)
        return
    rates = {"lr": lr, "momentum": beta, "dampening": 0.0, "weight_decay": decay}

    def whole(v: Tensor, g: Tensor, *m: Tensor) -> None:
        kernel([v], [g], list(m), nesterov=nesterov, maximize=False, is_first_step=False, **rates)

    _in_vectors(whole, *tensors)


def adagrad(value: Tensor, gradient: Tensor, total: Tensor, *, lr: float, eps: float, decay: float) -> None:
    """Update as torch.optim.Adagrad at a constant rate. total: the sums of squared gradients [n]."""
    kernel = _find_kernel("_fused_adagrad_", value)
    if kernel is None:
        in_blocks(partial(_adagrad_block, lr=lr, eps=eps, decay=decay), value, gradient, total)
        return
    step = torch.tensor(1.0)

    def whole(v: Tensor, g: Tensor, t: Tensor) -> None:
        kernel([v], [g], [t], [step], lr=lr, eps=eps, weight_decay=decay, lr_decay=0.0, maximize=False)

    _in_vectors(whole, value, gradient, total)


def adam(
    value: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    number: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
) -> None:
    """Update as torch.optim.Adam, or as AdamW if the decay is decoupled. number: of the update, from 1.

    mean, square: the running means [n] of the gradient and of its square.
    """
    tensors = (value, gradient, mean, square)
    kernel = _find_kernel("_fused_adamw_" if decoupled else "_fused_adam_", value)
    if kernel is None:
        in_blocks(
            partial(_adam_block, number=number, lr=lr, betas=betas, eps=eps, decay=decay, decoupled=decoupled), *tensors
        )
        return
    step = torch.tensor(float(number), dtype=torch.float64)
    rates = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "weight_decay": decay, "eps": eps}

    def whole(v: Tensor, g: Tensor, m: Tensor, s: Tensor) -> None:
        kernel([v], [g], [m], [s], [], [step], amsgrad=False, maximize=False, **rates)

    _in_vectors(whole, *tensors)


def _sgd_block(
    v: Tensor, g: Tensor, m: Tensor | None = None, *, lr: float, beta: float, nesterov: bool, decay: float
) -> None:
    if decay:
        g = g.add(v, alpha=decay)
    if m is not None:
        m.mul_(beta).add_(g)
        g = g.add(m, alpha=beta) if nesterov else m
    v.add_(g, alpha=-lr)


def _adagrad_block(v: Tensor, g: Tensor, total: Tensor, *, lr: float, eps: float, decay: float) -> None:
    if decay:
        g = g.add(v, alpha=decay)
    total.addcmul_(g, g)
    v.addcdiv_(g, total.sqrt().add_(eps), value=-lr)


def _adam_block(
    v: Tensor,
    g: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    number: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
) -> None:
    beta1, beta2 = betas
    if decoupled:
        v.mul_(1 - lr * decay)
    elif decay:
        g = g.add(v, alpha=decay)
    mean.lerp_(g, 1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = square.sqrt().div_(math.sqrt(1 - beta2**number)).add_(eps)
    v.addcdiv_(mean, root, value=-lr / (1 - beta1**number))


def _find_kernel(name: str, value: Tensor) -> Kernel | None:
    """Return a kernel of torch, if it has that and it suits values of this dtype."""
    kernel: Kernel | None = getattr(torch, name, None) if value.dtype in DTYPES else None
    return kernel


def _in_vectors(kernel: Kernel, value: Tensor, gradient: Tensor, *memory: Tensor) -> None:
    """Call a kernel with all elements, in whole vectors.

    Kernels compute the elements that do not fill a vector with other instructions, which round differently. Padded to a
    vector, the last elements get the bits that they would in the middle of a longer slice, so that the bounds of slices
    do not matter.
    """
    tensors = (value, gradient, *memory)
    size = value.numel()
    whole = size - size % LANES
    if whole:
        kernel(*(flat[:whole] for flat in tensors))
    if whole == size:
        return
    padded = [torch.nn.functional.pad(flat[whole:], (0, whole + LANES - size)) for flat in tensors]
    kernel(*padded)
    for flat, last in zip((value, *memory), (padded[0], *padded[2:]), strict=True):
        flat[whole:] = last[: size - whole]
