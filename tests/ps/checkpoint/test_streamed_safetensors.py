"""Files written a part at a time are plain safetensors files, and any part of such a file can be read."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from cutset.errors import CheckpointError
from cutset.ps.checkpoint.streamed_safetensors import TensorReader, TensorWriter, fill_box

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn),
)


def tensors():
    """One of every dtype, and of odd shapes."""
    generator = torch.Generator().manual_seed(0)
    found = {f"of {dtype}": (torch.randn(3, 5, generator=generator) * 3).to(dtype) for dtype in DTYPES}
    more = {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "bool": torch.tensor([True, False, True])}
    return found | more


def write(path, named, **options):
    with TensorWriter(path, {name: (t.dtype, list(t.shape)) for name, t in named.items()}, **options) as writer:
        for name, tensor in named.items():
            writer.write(name, tensor)
        writer.finish()


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_safetensors_reads_our_files(tmp_path):
    write(tmp_path / "file", tensors(), metadata={"kind": "test"})
    same(load_file(tmp_path / "file"), tensors())
    assert TensorReader(tmp_path / "file").metadata == {"kind": "test"}


def test_files_of_safetensors_are_read(tmp_path):
    save_file(tensors(), tmp_path / "file", metadata={"kind": "test"})
    with TensorReader(tmp_path / "file") as reader:
        same({name: reader.tensor(name) for name in reader.layouts}, tensors())
        assert reader.metadata == {"kind": "test"}


def test_parts_in_any_order_and_tensors_in_any_layout(tmp_path, monkeypatch):
    monkeypatch.setattr("cutset.ps.checkpoint.streamed_safetensors.PART_BYTES", 64)
    whole, turned = torch.randn(40), torch.randn(7, 30, 5).permute(2, 0, 1)
    layouts = {"whole": (torch.float32, [40]), "turned": (torch.float32, [5, 7, 30])}
    with TensorWriter(tmp_path / "file", layouts) as writer:
        for start in (24, 0, 8, 16, 32):
            writer.write("whole", whole[start : start + 8], start=start)
        writer.write("turned", turned)
        writer.finish()
    same(load_file(tmp_path / "file"), {"whole": whole, "turned": turned.contiguous()})


def test_missing_or_misfitting_tensors_are_a_bug(tmp_path):
    with TensorWriter(tmp_path / "file", {"w": (torch.float32, [4])}) as writer:
        with pytest.raises(ValueError, match="at 2 of w"):
            writer.write("w", torch.zeros(3), start=2)
        with pytest.raises(ValueError, match="float64"):
            writer.write("w", torch.zeros(4, dtype=torch.float64))
        writer.write("w", torch.zeros(3))
        with pytest.raises(ValueError, match="4 bytes of the tensors were not written"):
            writer.finish()


def test_a_dtype_that_the_format_lacks_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tensor w is of torch\.complex128"):
        TensorWriter(tmp_path / "file", {"w": (torch.complex128, [1])})


axes = st.lists(st.integers(1, 6), max_size=4)


@settings(deadline=None)
@given(axes, st.data(), st.sampled_from([4, 16, 100, 1 << 20]))
def test_a_box_equals_that_of_the_whole(sides, data, part_bytes):
    whole = torch.arange(float(torch.Size(sides).numel())).view(sides)
    ends = [tuple(sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in sides]
    expected = whole[tuple(slice(*side) for side in ends)]
    target = torch.full(expected.shape, -1.0)
    flat = whole.reshape(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutset.ps.checkpoint.streamed_safetensors.PART_BYTES", part_bytes)
        fill_box(target, sides, ends, lambda start, stop: flat[start:stop])
    assert torch.equal(target, expected)


def test_a_box_of_a_file(tmp_path):
    weight = torch.randn(12, 10)
    write(tmp_path / "file", {"w": weight})
    with TensorReader(tmp_path / "file") as reader:
        found = reader.box("w", (3, 4, 10), ((1, 3), (0, 2), (5, 9)))
        assert torch.equal(found, weight.view(3, 4, 10)[1:3, 0:2, 5:9])
        with pytest.raises(ValueError, match="axes"):
            reader.box("w", (3, 5), ((0, 1), (0, 1)))
        with pytest.raises(CheckpointError, match="no tensor 'v'"):
            reader.read("v")


def header(text, data=b""):
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}

BROKEN = {
    "empty": b"",
    "no header": (1 << 40).to_bytes(8, "little"),
    "no json": header(b"{"),
    "no object": header(b"[]"),
    "a dtype of its own": header(json.dumps({"w": ENTRY["w"] | {"dtype": "F1"}}).encode(), bytes(8)),
    "no shape": header(json.dumps({"w": {"dtype": "F32", "data_offsets": [0, 8]}}).encode(), bytes(8)),
    "another size": header(json.dumps({"w": ENTRY["w"] | {"shape": [3]}}).encode(), bytes(8)),
    "cut short": header(json.dumps(ENTRY).encode(), bytes(7)),
    "a shape of words": header(json.dumps({"w": ENTRY["w"] | {"shape": ["a"]}}).encode(), bytes(8)),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"E803.*file cannot be read"):
        TensorReader(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"E803.*elsewhere cannot be read"):
        TensorReader(tmp_path / "elsewhere")
