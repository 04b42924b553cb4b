"""`cutset::local2d` and `LocallyConnected2d`."""

import importlib
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cutset.models.tasks import locally_connected as local
from cutset.models.tasks.locally_connected import LocallyConnected2d

local2d = torch.ops.cutset.local2d


def by_position(x, weight, bias, stride):
    """One F.linear a position."""
    rows, columns, _, _, height, width = weight.shape
    out = []
    for p in range(rows):
        for q in range(columns):
            top, left = p * stride, q * stride
            patch = x[:, :, top : top + height, left : left + width].flatten(1)
            b = None if bias is None else bias[:, p, q]
            out.append(nn.functional.linear(patch, weight[p, q].flatten(1), b))
    return torch.stack(out, -1).unflatten(-1, (rows, columns))


def operands(*, batch, channels, maps, rows, columns, kernel=(3, 2), stride=1, spare=0, bias=True):
    """Random x, weight and bias in float64; `spare` image rows and columns are left over by the stride."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    image = [(n - 1) * stride + k + spare for n, k in zip((rows, columns), kernel, strict=True)]
    weight = draw(rows, columns, maps, channels, *kernel)
    return draw(batch, channels, *image), weight, draw(maps, rows, columns) if bias else None, stride


sizes = st.integers(1, 4)


@given(
    batch=st.integers(0, 3),
    channels=sizes,
    maps=sizes,
    rows=sizes,
    columns=sizes,
    kernel=st.tuples(sizes, sizes),
    stride=st.integers(1, 3),
    bias=st.booleans(),
    data=st.data(),
)
def test_equals_a_linear_layer_a_position(data, stride, **settings):
    values = operands(stride=stride, spare=data.draw(st.integers(0, stride - 1)), **settings)
    y = local2d(*values)
    assert y.is_contiguous()
    torch.testing.assert_close(y, by_position(*values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.run
def test_gradients(stride, bias):
    values = operands(batch=2, channels=2, maps=3, rows=2, columns=3, stride=stride, spare=stride - 1, bias=bias)
    assert torch.autograd.gradcheck(local2d, values)
    assert torch.autograd.gradgradcheck(local2d, values)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_of_each_sample():
    x, weight, bias, stride = operands(batch=3, channels=2, maps=3, rows=2, columns=3)

    def loss(compute, sample, parameters):
        return compute(sample.unsqueeze(0) * parameters[0].mean(), *parameters, stride).square().sum()

    with_patches, by_linear = (
        torch.func.vmap(torch.func.grad(partial(loss, compute), argnums=(0, 1)), in_dims=(0, None))(x, (weight, bias))
        for compute in (local2d, by_position)
    )
    torch.testing.assert_close(with_patches, by_linear, rtol=1e-12, atol=1e-12)


def test_gradients_under_autocast():
    values = [v.detach().float().requires_grad_() for v in operands(batch=3, channels=2, maps=3, rows=2, columns=3)[:3]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = local2d(*values, 1)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    found = [v.grad.clone() for v in values]
    for value in values:
        value.grad = None
    by_position(*values, 1).square().sum().backward()
    torch.testing.assert_close(found, [v.grad for v in values], rtol=0.1, atol=0.1)


@pytest.mark.run
def test_gradients_where_it_is_compiled():
    values = operands(batch=3, channels=2, maps=3, rows=2, columns=3)
    compiled = torch.compile(lambda x, *others: local2d(x * 2, *others), backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(*values).square().sum(), values[:3])
    x, *others = values
    expected = torch.autograd.grad(by_position(x * 2, *others).square().sum(), values[:3])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "bias", "stride"),
    [((2, 3, 4, 4), (5, 2, 2), 1), ((2, 1, 5, 4), (5, 2, 2), 1), ((2, 1, 4, 4), (5, 2, 2), 2), ((2, 1, 4, 4), (5,), 1)],
    ids=["channels", "rows", "stride", "bias"],
)
def test_shapes_that_do_not_fit_are_named(x, bias, stride):
    with pytest.raises(ValueError, match=r"local2d: x .* does not fit weight \(2, 2, 5, 1, 3, 3\)"):
        local2d(torch.zeros(x), torch.zeros(2, 2, 5, 1, 3, 3), torch.zeros(bias), stride)


def test_export_on_meta_keeps_it_one_node():
    with torch.device("meta"):
        model = nn.Sequential(LocallyConnected2d(1, 4, size=(8, 8), kernel=3), nn.ReLU())
        program = torch.export.export(model, (torch.zeros(2, 1, 8, 8),), strict=False)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert calls == ["cutset.local2d.default", "aten.relu.default"]


def test_layer_has_the_size_and_the_range_of_weights_of_linear():
    torch.manual_seed(0)
    layer = LocallyConnected2d(8, 4, size=(9, 7), kernel=3, stride=2)
    assert layer.out_size == (4, 3)
    assert layer(torch.zeros(5, 8, 9, 7)).shape == (5, 4, 4, 3)
    bound = (8 * 3 * 3) ** -0.5
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert repr(layer) == "LocallyConnected2d(8, 4, kernel=3, stride=2, positions=4x3)"


@pytest.mark.parametrize("settings", [{"kernel": 0}, {"kernel": 5}, {"kernel": 3, "stride": 0}])
def test_layer_that_does_not_fit_its_image_is_refused(settings):
    with pytest.raises(ValueError, match=r"do not fit an image of \(4, 6\)"):
        LocallyConnected2d(1, 1, size=(4, 6), **settings)


def test_reload_keeps_the_operator():
    values = operands(batch=1, channels=1, maps=1, rows=2, columns=2)
    before = local2d(*values)
    importlib.reload(local)
    assert torch.equal(torch.ops.cutset.local2d(*values), before)


@pytest.mark.slow
def test_a_second_import_keeps_the_operator():
    code = (
        "import gc, sys, torch, cutset.models.tasks.locally_connected\n"
        "del sys.modules['cutset.models.tasks.locally_connected'], cutset.models.tasks.locally_connected\n"
        "gc.collect()\n"
        "import cutset.models.tasks.locally_connected as again\n"
        "layer = again.LocallyConnected2d(1, 2, size=(4, 4), kernel=3)\n"
        "assert layer(torch.zeros(1, 1, 4, 4)).shape == (1, 2, 2, 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
