"""FLOPs of code that is run: those of the operators that it calls, however they are called."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.operators.flop_counter import FlopCounter
from cutset.partition.operators.flop_formulas import FORMULAS
from cutset.partition.operators.leaf_module import LEAF_MODULE

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 24, 16, 32, 4, 2


@torch.library.custom_op("cutset_test::product", mutates_args=())
def product(rows: Tensor, weight: Tensor) -> Tensor:
    """A product that torch's counter does not see, row by row, into a given tensor."""
    out = rows.new_zeros(rows.shape[0], weight.shape[1])
    for i in range(len(rows)):
        torch.mm(rows[i : i + 1], weight, out=out[i : i + 1])
    return out


@product.register_fake
def _(rows: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
    rows, weight = context.saved_tensors  # type: ignore[attr-defined]
    return gradient @ weight.T, rows.T @ gradient


product.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op("cutset_test::twice", mutates_args=())
def twice(rows: Tensor, weight: Tensor) -> Tensor:
    """An operator that calls another one of a library."""
    once: Tensor = product(rows, weight)
    return once + product(rows, weight)


@torch.library.custom_op("cutset_test::outside_of_torch", mutates_args=())
def outside_of_torch(rows: Tensor) -> Tensor:
    """What it does, it does out of torch's sight."""
    return torch.from_numpy(rows.detach().numpy() * 3)


@outside_of_torch.register_fake
def _(rows: Tensor) -> Tensor:
    return torch.empty_like(rows)


outside_of_torch.register_autograd(lambda context, gradient: gradient * 3)


class Experts(nn.Module):
    """A mixture of experts as transformers writes them: each token goes to the experts with the best scores.

    multiply: the product of tokens and a weight.
    """

    def __init__(self, multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / 4)
        self.multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        weight, expert_of = self.router(x).softmax(-1).topk(CHOSEN, -1)
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            tokens, place = torch.where(expert_of == expert)
            hidden = F.silu(self.multiply(x[tokens], self.up[expert]))
            out.index_add_(0, tokens, self.multiply(hidden, self.down[expert]) * weight[tokens, place, None])
        return out


def leaf_flops(module: nn.Module, *shape: int) -> float:
    """FLOPs in the graph of a module that is kept whole."""
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), module)
    graph, _ = capture(model, F.mse_loss, [torch.randn(shape)], [torch.randn(shape)], leaf_modules=["1"])
    (op,) = [op for op in graph.ops if op.target == LEAF_MODULE]
    return op.flops


def library_product(rows: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = product(rows, weight)
    return out


@pytest.mark.parametrize(
    "multiply", [torch.matmul, library_product], ids=["products of torch", "products of a library"]
)
def test_experts_count_what_the_tokens_sent_to_them_take(multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
    products = CHOSEN * TOKENS * 2 * (2 * WIDTH * HIDDEN) + 2 * TOKENS * WIDTH * EXPERTS
    assert products <= leaf_flops(Experts(multiply), TOKENS, WIDTH) <= 1.25 * products


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        nn.Sequential(nn.Conv1d(12, 12, 3, padding=1), nn.Tanh()),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_module_takes_as_much_whole_as_traced(module: nn.Module) -> None:
    x = torch.randn(4, 12, 16)
    graph, _ = capture(nn.Sequential(nn.Linear(16, 16), module), F.mse_loss, [x], [x])
    traced = sum(op.flops for op in graph.ops if op.module != "0" and "mse" not in op.target)
    assert leaf_flops(module, 4, 12, 16) == pytest.approx(traced, rel=0.2)


def test_a_layer_that_repeats_an_element_wise_operator_counts_each_time() -> None:
    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(50):
                x = torch.tanh(x)
            return x

    assert leaf_flops(Repeated(), 4, 16) == 50 * 4 * 16


N = 8
SQUARE = torch.randn(N, N) + 4 * torch.eye(N)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: nn.LSTM(N, N, 2)(torch.randn(5, 4, N)), 2 * 5 * 4 * 2 * (2 * 4 * N * N)),
        (lambda: nn.GRU(N, N)(torch.randn(5, 4, N)), 5 * 4 * 2 * (2 * 3 * N * N)),
        (lambda: F.scaled_dot_product_attention(*torch.randn(3, 2, 3, N, 16)), 2 * 3 * 2 * (2 * N * N * 16)),
        (lambda: SQUARE.mv(torch.randn(N)), 2 * N * N),
        (lambda: torch.addmv(torch.randn(N), SQUARE, torch.randn(N)), 2 * N * N),
        (lambda: torch.randn(N).dot(torch.randn(N)), 2 * N),
        (lambda: torch.addbmm(SQUARE, *torch.randn(2, 3, N, N)), 3 * 2 * N**3),
        (lambda: nn.Bilinear(N, 9, 3, bias=False)(torch.randn(4, N), torch.randn(4, 9)), 3 * 4 * N * 9 * 3),
        (lambda: torch.cdist(torch.randn(30, N), torch.randn(40, N)), 3 * 30 * 40 * N),
        (lambda: torch.conv_tbc(torch.randn(6, 2, N), torch.randn(3, N, 5), torch.randn(5)), 2 * 4 * 2 * 5 * 3 * N),
        (lambda: torch.fft.fft(torch.randn(4, 16, dtype=torch.complex64)), 5 * 4 * 16 * 4),
        (lambda: torch.fft.rfft(torch.randn(4, 256)), 5 * 4 * 256 * 8 / 2),
        (lambda: torch.linalg.inv(SQUARE), 2 * N**3),
        (lambda: torch.linalg.cholesky(SQUARE @ SQUARE.T), 2 * N**3 + N**3 / 3),
        (lambda: torch.linalg.solve(SQUARE, torch.randn(N, 2)), 2 / 3 * N**3 + 2 * N * N * 2),
        (lambda: product(torch.randn(4, N), SQUARE), 2 * 4 * N * N),
        (lambda: twice(torch.randn(4, N), SQUARE), 2 * (2 * 4 * N * N)),
    ],
)
def test_operators_that_torchs_counter_does_not_know(run: Callable[[], object], expected: float) -> None:
    with FlopCounter() as counter:
        run()
    assert not counter.unknown
    assert 0.9 * expected <= counter.flops <= 1.15 * expected + 4 * 5 * 4 * N * 8, "and some for single elements"


def test_views_copies_and_new_tensors_take_nothing() -> None:
    with FlopCounter() as counter:
        torch.randn(3, 4).T.reshape(12)[2:].view(5, 2).detach().expand(2, 5, 2)
        torch.cat([SQUARE, SQUARE])[torch.tensor([1, 2])].clone()
        torch.zeros(4).index_copy_(0, torch.tensor([1]), torch.ones(1))
    assert not counter.flops


@pytest.fixture
def formula() -> Iterator[None]:
    """A formula that the user gives for the duration of a test."""
    register_flop_formula(torch.ops.cutset_test.outside_of_torch)(lambda rows, **rest: 7 * math.prod(rows))
    yield
    del flop_registry[torch.ops.cutset_test.outside_of_torch]


class Hidden(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = outside_of_torch(x)
        return out


def test_what_torch_does_not_see_is_refused_by_name() -> None:
    calls = r"E326: the leaf module 1 calls the operator cutset_test\.outside_of_torch\.default, whose FLOPs"
    with pytest.raises(BadInput, match=calls) as error:
        leaf_flops(Hidden(), 4, 16)
    assert "register_flop_formula(torch.ops.cutset_test.outside_of_torch)" in str(error.value)


@pytest.mark.usefixtures("formula")
def test_a_formula_of_the_users_counts() -> None:
    assert leaf_flops(Hidden(), 4, 16) == 7 * 4 * 16


def run_composite(a: Tensor) -> None:
    with torch.inference_mode():  # in which torch leaves it to the counter to take composite operators apart
        torch.einsum("ij,jk->ik", a, a)


def run_branches(a: Tensor) -> None:
    torch.cond(torch.tensor(True), lambda x: x @ x, lambda x: (x @ x) @ x, [a])


@pytest.mark.parametrize(
    "run", [run_composite, run_branches, torch.vmap(lambda a: a @ torch.ones(6)), nn.MultiheadAttention(6, 2)]
)
def test_products_count_as_torchs_own_counter_has_them(run: Callable[..., object]) -> None:
    operands = [torch.randn(6, 6)] * (3 if isinstance(run, nn.Module) else 1)
    torchs = FlopCounterMode(display=False, custom_mapping=dict(FORMULAS))
    with torchs:
        run(*operands)
    counter = FlopCounter()
    for times in (1, 2):
        with counter:
            run(*operands)
        assert counter._torch.get_total_flops() == torchs.get_total_flops() > 0
        assert counter.flops >= times * torchs.get_total_flops()
