"""Nothing of a gradient is lost but what the format says, and what is no gradient is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from regression import SIZE, plain_sgd, run

from cutset.errors import UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.slices.compression import COMPRESSIONS, BFloat16, Int8, Threshold, TopK, parse_compression
from cutset.ps.slices.push_payload import GradientPacker, parse_payload

ALL = [BFloat16(), Int8(), Int8(block=3), Threshold(0.5), TopK(), TopK(fraction=0.3), TopK(fraction=1)]
WITH_FEEDBACK = [one for one in ALL if one.feedback]
DTYPES = [torch.float32, torch.float64]


def drawn(seed, size, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(size, dtype=dtype, generator=generator).mul_(10).sub_(5).exp_()
    return sizes * torch.randn(size, dtype=dtype, generator=generator)


def shown(packed, size, dtype):
    return parse_payload(packed.body_fields, packed.tensors).to_gradient(size, dtype)


@given(st.integers(0, 1 << 30), st.integers(1, 300), st.integers(1, 8), st.sampled_from(WITH_FEEDBACK))
def test_pushes_and_the_residual_add_up_to_all_gradients(seed, size, pushes, how):
    packer = GradientPacker(how)
    total, told = torch.zeros(2, size, dtype=torch.float64)
    for i in range(pushes):
        gradient = drawn(seed + i, size)
        before = gradient.clone()
        told += shown(packer.pack(gradient), size, gradient.dtype)
        assert torch.equal(gradient, before)
        total += gradient
    torch.testing.assert_close(told + packer.residual, total, rtol=1e-12, atol=1e-12 * float(total.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bf16_casts_and_has_no_residual(dtype):
    gradient, packer = drawn(0, 100, dtype), GradientPacker(BFloat16())
    assert torch.equal(shown(packer.pack(gradient), 100, dtype), gradient.to(torch.bfloat16).to(dtype))
    assert packer.residual is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2048, 5000])
def test_int8_is_off_by_half_a_scale_at_most(dtype, size):
    gradient, how = drawn(1, size, dtype), Int8()
    told = how.unpack(how.pack(gradient.clone()), size, dtype)
    for part, original in zip(told.split(2048), gradient.split(2048), strict=True):
        assert (part - original).abs().max() <= original.abs().max() / 127 * 0.5001


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e30])
def test_int8_of_tiny_and_huge_numbers(size):
    gradient = torch.tensor([size, 0.0, -size])
    told = Int8().unpack(Int8().pack(gradient.clone()), 3, torch.float32)
    assert (told - gradient).abs().max() <= max(size / 200, torch.finfo(torch.float32).tiny)


def test_threshold_sends_tau_and_keeps_the_rest():
    packer = GradientPacker(Threshold(0.5))
    packed = packer.pack(torch.tensor([0.4, -0.6, 2.0, 0.0]))
    assert shown(packed, 4, torch.float32).tolist() == [0, -0.5, 0.5, 0]
    torch.testing.assert_close(packer.residual, torch.tensor([0.4, -0.1, 1.5, 0.0]))
    assert shown(packer.pack(torch.tensor([0.4, 0.0, 0.0, 0.0])), 4, torch.float32).tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize("size", [10, 1000, 100_000])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 1])
def test_topk_sends_the_largest(size, fraction):
    gradient, how = drawn(2, size), TopK(fraction)
    told = how.unpack(how.pack(gradient.clone()), size, gradient.dtype)
    count = math.ceil(fraction * size)
    least = gradient.abs().sort(descending=True).values[count - 1]
    assert torch.equal(told, torch.where(gradient.abs() >= least, gradient, 0))


def test_topk_of_equal_elements():
    for gradient in (torch.zeros(100_000), torch.ones(100_000)):
        places, values = TopK().pack(gradient.clone())
        assert len(places) == len(values) == 1000


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (BFloat16(), 2 * 10_000),
        (Int8(), 10_000 + 4 * 5),
        (Threshold(1e9), 0),
        (Threshold(1e-9), 4 * 10_000),
        (TopK(0.01), 8 * 100),
    ],
    ids=str,
)
def test_bytes_on_the_wire(how, expected):
    assert sum(t.nbytes for t in GradientPacker(how).pack(torch.ones(10_000)).tensors) == expected


@pytest.mark.parametrize("how", ALL, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_sent_and_spoils_no_later_push(how, bad):
    packer = GradientPacker(how)
    packer.pack(torch.ones(5))
    told = shown(packer.pack(torch.tensor([1.0, bad, 1.0, 1.0, 1.0])), 5, torch.float32)
    assert not torch.isfinite(told).all()
    assert torch.isfinite(shown(packer.pack(torch.ones(5)), 5, torch.float32)).all()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_a_payload_does_not_change(dtype):
    for how in ALL:
        packer, gradient = GradientPacker(how), drawn(3, 50).to(dtype)
        packed = packer.pack(gradient)
        first = [t.clone() for t in packed.tensors]
        gradient.zero_()
        packer.pack(drawn(4, 50).to(dtype))
        assert all(map(torch.equal, packed.tensors, first))


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    ("how", "tensors", "facts"),
    [
        (BFloat16(), (torch.zeros(4),), r"has torch\.float32 \[4\]; there should be torch\.bfloat16 \[4\]"),
        (BFloat16(), (), "has nothing"),
        (Int8(), (torch.zeros(3, dtype=torch.int8), torch.zeros(1)), r"int8 \[3\]"),
        (Int8(), (torch.zeros(4, dtype=torch.int8), torch.zeros(2)), r"float32 \[2\]"),
        (Int8(), (torch.zeros(4, dtype=torch.int8), torch.zeros(1, dtype=torch.float64)), r"float64 \[1\]"),
        (Threshold(1.0), (int32(8),), "do not ascend from 0 to 3"),
        (Threshold(1.0), (int32(-1),), "do not ascend"),
        (Threshold(1.0), (int32(2, 3),), "do not ascend"),
        (Threshold(1.0), (int32(4, 2),), "do not ascend"),
        (Threshold(1.0), (torch.zeros(1, 1, dtype=torch.int32),), r"int32 \[1, 1\]"),
        (TopK(0.5), (int32(0, 4), torch.zeros(2)), "do not ascend"),
        (TopK(0.5), (int32(1, 1), torch.zeros(2)), "do not ascend"),
        (TopK(0.5), (int32(-1, 1), torch.zeros(2)), "do not ascend"),
        (TopK(0.5), (int32(0, 1), torch.zeros(3)), r"float32 \[3\]"),
        (TopK(0.5), (int32(0, 1, 2), torch.zeros(3)), r"int32 \[3\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(how, tensors, facts):
    with pytest.raises(ValueError, match=facts):
        how.unpack(tensors, 4, torch.float32)


@pytest.mark.parametrize(
    "packed",
    ["int8", {"type": "gzip"}, {"type": "int8", "block": 0}, {"type": "int8", "block": "x"}, {"type": "threshold"}, 7],
)
def test_an_unknown_compression_is_refused(packed):
    with pytest.raises(ValueError, match="has an unknown compression"):
        parse_payload({"compression": packed}, ())


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("how", WITH_FEEDBACK, ids=str)
def test_a_lone_replica_computes_the_same_as_without_compression(how):
    rate, steps, lacking = 0.005, 40, []
    _, _, [whole] = run(Downpour(), SGD(rate), steps=steps)
    values, _, [reports] = run(Downpour(), SGD(rate), steps=steps, compression=how)
    torch.testing.assert_close([loss for _, loss, _ in reports], [loss for _, loss, _ in whole], rtol=1e-9, atol=0)
    lacking = values - plain_sgd(rate, steps)  # what the shards were never told
    assert (lacking.abs().max() > 1e-9) == (how != TopK(1))


def test_fewer_bytes_are_counted_by_client_and_shard():
    _, [statistics], _ = run(Downpour(), SGD(0.01), steps=4, shards=1, compression=TopK(0.1))
    assert statistics["slices"][0]["bytes_in"] == 8 * SIZE + 4 * (4 + 8) * SIZE // 10


def test_named_on_the_command_line():
    assert parse_compression("bf16") == BFloat16()
    assert parse_compression("topk:fraction=0.5") == TopK(0.5)
    assert parse_compression("threshold:tau=2") == Threshold(2.0)
    assert {name: kind.__struct_config__.tag for name, kind in COMPRESSIONS.items()} == {n: n for n in COMPRESSIONS}


@pytest.mark.parametrize(
    ("text", "code", "facts"),
    [
        ("zip", "E252", "no compression 'zip'"),
        ("topk:k=3", "E254", "no option 'k=3'"),
        ("threshold", "E254", "needs its option 'tau'"),
        ("threshold:tau=0", "E256", r"tau of compression threshold is 0\.0"),
        ("threshold:tau=nan", "E256", "tau of compression threshold is nan"),
        ("topk:fraction=0", "E256", r"fraction of compression topk is 0\.0"),
        ("topk:fraction=1.5", "E256", r"fraction of compression topk is 1\.5"),
        ("int8:block=0", "E256", "block of compression int8 is 0"),
    ],
)
def test_nonsense_on_the_command_line(text, code, facts):
    with pytest.raises(UsageError, match=facts) as caught:
        parse_compression(text)
    assert caught.value.code == code
    assert caught.value.fix.startswith("--compress ")
