"""Checkpoints: what was written comes back, and what is missing, damaged or too new is named."""

import json
import math
import os
from itertools import pairwise, product
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import CheckpointError
from cutset.ps.checkpoint.manifest import Manifest
from cutset.ps.checkpoint.read_checkpoint import Checkpoint, load_checkpoint, open_checkpoint
from cutset.ps.checkpoint.write_checkpoint import write_manifest, write_shard, write_state
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serve_loop import serve
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.region import Region
from cutset.ps.slices.slice_state import SliceState
from cutset.ps.slices.slicing import slice_parameters, slices_of_shard
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message


def cut(name, whole, *, axes, cuts, machines):
    """(machine, region, values) of the grid of boxes that `cuts` makes of the axes, dealt out in turn."""
    sides = [
        list(pairwise([0, *sorted({c for c in inner if 0 < c < size}), size]))
        for size, inner in zip(axes, cuts, strict=True)
    ]
    for number, box in enumerate(product(*sides)):
        values = whole.reshape(axes)[tuple(slice(*side) for side in box)].reshape(-1)
        yield number % machines, Region(name, list(whole.shape), list(axes), list(box), 0), values


def packed(pieces, machines):
    """The flat buffer and the regions of every machine."""
    buffers, regions = [torch.empty(0) for _ in range(machines)], [[] for _ in range(machines)]
    for machine, region, values in pieces:
        offset = len(buffers[machine])
        regions[machine].append(Region(region.name, region.shape, region.axes, region.box, offset))
        buffers[machine] = torch.cat([buffers[machine], values])
    return buffers, regions


def example(machines=2):
    """A weight (192, 64) = axes (3, 4, 16, 64) cut along heads and model, and a bias of one region."""
    whole = {"weight": torch.randn(192, 64, generator=torch.Generator().manual_seed(0)), "bias": torch.arange(192.0)}
    pieces = [
        *cut("weight", whole["weight"], axes=(3, 4, 16, 64), cuts=([], [1, 2, 3], [], [32]), machines=machines),
        *cut("bias", whole["bias"], axes=(192,), cuts=([],), machines=machines),
    ]
    return whole, *packed(pieces, machines)


def filled(buffers, shards, optimizer):
    """Shards that hold the buffers, after three pushes of the worker of each machine."""
    slices = slice_parameters([len(buffer) for buffer in buffers], shards)
    servers = [Shard(s, slices_of_shard(slices, s), ServingConfig(optimizer)) for s in range(shards)]
    for piece in slices:
        values = buffers[piece.machine][piece.start : piece.stop]
        servers[piece.shard].handle(Message("put", edge=piece.number, tensors=(values,), sender="worker-0.0"))
        for number in (1, 2, 3):
            body = {"base": 0, "number": number, "replica": 0}
            push = Message("push", edge=piece.number, body=body, tensors=(values * 0,), sender="worker-0.0")
            servers[piece.shard].handle(push)
    return slices, servers


def written(folder, *, shards=3, optimizer=None, machines=2):
    """A checkpoint in `folder`; the whole parameters and the shards that it holds."""
    whole, buffers, regions = example(machines)
    slices, servers = filled(buffers, shards, optimizer or Adagrad(0.1))
    files = [write_shard(folder, s, server.slice_states(), server.optimizer) for s, server in enumerate(servers)]
    write_manifest(folder, Manifest(slices, regions, files, about={"step": 3}))
    return whole, servers


def save(folder, buffers, regions, *, shards, states=()):
    """A checkpoint of these buffers."""
    slices, servers = filled(buffers, shards, SGD(0.1))
    files = [write_shard(folder, s, server.slice_states(), server.optimizer) for s, server in enumerate(servers)]
    write_manifest(folder, Manifest(slices, regions, files, list(states)))


def equal(state, expected):
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("shards", [1, 3, 7])
@pytest.mark.parametrize("machines", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)])
def test_the_whole_state_comes_back(tmp_path, shards, machines, optimizer):
    whole, _ = written(tmp_path / "run" / "checkpoint", shards=shards, machines=machines, optimizer=optimizer)
    assert equal(load_checkpoint(tmp_path / "run" / "checkpoint"), whole)


def test_more_shards_than_elements(tmp_path):
    _, servers = filled([torch.ones(20)], 3, SGD(0.1))
    files = [write_shard(tmp_path, s, server.slice_states(), server.optimizer) for s, server in enumerate(servers)]
    region = Region("w", [20], [20], [(0, 20)], 0)
    write_manifest(tmp_path, Manifest(slice_parameters([20], 3), [[region]], files))
    assert equal(load_checkpoint(tmp_path), {"w": torch.ones(20)})


def test_a_shard_continues_from_a_checkpoint_without_a_difference(tmp_path):
    _, servers = written(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.manifest.about == {"step": 3}
    for index, before in enumerate(servers):
        slices = slices_of_shard(checkpoint.manifest.slices, index)
        after = Shard(
            index, slices, ServingConfig(checkpoint.read_optimizer(index)), restored=checkpoint.read_slices(index)
        )
        for piece in slices:
            gradient = torch.linspace(-1, 1, piece.size)
            for number in (3, 4):  # the third was applied already
                push = Message(
                    "push",
                    edge=piece.number,
                    body={"base": 3, "number": number, "replica": 0},
                    tensors=(gradient,),
                    sender="worker-0.0",
                )
                assert after.handle(push)[0][1].body == before.handle(push)[0][1].body
        for ours, theirs in zip(after.slice_states(), before.slice_states(), strict=True):
            assert torch.equal(ours.value, theirs.value)
            assert torch.equal(ours.state["sum"], theirs.state["sum"])
            assert (ours.version, ours.applied) == (theirs.version, theirs.applied) == (4, {"worker-0.0": 4})


def test_serve_writes_its_file_at_finish(tmp_path):
    whole, buffers, regions = example()
    slices, servers = filled(buffers, 2, SGD(0.1))
    network = MemoryNetwork()
    channels = [network.channel(f"shard-{s}") for s in range(2)]
    launcher = network.channel("launcher")
    files = []
    for server, channel in zip(servers, channels, strict=True):
        launcher.send(channel.name, Message("finish", body={"path": str(tmp_path)}))
        launcher.send(channel.name, Message("kept", body={"kind": "final_file", "failure": ""}))
        files.append(serve(server, channel)["file"])
    plain = msgspec.to_builtins({"slices": slices, "regions": regions, "files": files})
    write_manifest(tmp_path, msgspec.convert(plain, type=Manifest))
    assert equal(load_checkpoint(tmp_path), whole)


def test_writing_again_keeps_the_old_checkpoint_until_the_manifest(tmp_path):
    whole, servers = written(tmp_path)
    old = {path.name for path in tmp_path.iterdir()}
    for server in servers:
        for slice_state in server.slice_states():
            slice_state.value.zero_()
    files = [write_shard(tmp_path, s, server.slice_states(), server.optimizer) for s, server in enumerate(servers)]
    assert equal(load_checkpoint(tmp_path), whole)
    before = open_checkpoint(tmp_path).manifest
    write_manifest(tmp_path, Manifest(before.slices, before.regions, files))
    assert all((tensor == 0).all() for tensor in load_checkpoint(tmp_path).values())
    new = {path.name for path in tmp_path.iterdir()}
    assert old & new == {"manifest.json"}
    assert len(new) == 4


def failure(folder):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert caught.value.exit_code == 8
    return str(caught.value)


def shard_path(folder, number):
    [path] = folder.glob(f"shard-{number}.*.safetensors")
    return path


def test_no_checkpoint_at_all(tmp_path):
    assert "manifest.json" in failure(tmp_path / "nowhere")


def test_a_missing_file_is_named(tmp_path):
    written(tmp_path)
    path = shard_path(tmp_path, 1)
    path.unlink()
    assert str(path) in failure(tmp_path)


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_damaged_file_is_named(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("checkpoint")
    written(folder)
    path = shard_path(folder, data.draw(st.integers(0, 2)))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    words = failure(folder)
    assert "E802" in words
    assert str(path) in words


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


EDITS = {
    "newer format": (
        lambda m: m.update(format=4, files="elsewhere"),
        "E804",
        "format 4; this cutset reads format 3",
    ),
    "older format": (lambda m: m.update(format=2, files="elsewhere"), "E804", "format 2; this cutset reads format 3"),
    "no slices": (lambda m: m.pop("slices"), "E802", "slices"),
    "a hash that is a path": (lambda m: m["files"][0].update(sha256="../" * 22), "E802", "sha256"),
    "a shard less": (lambda m: m["files"].pop(), "E803", "do not hold all parameters of machine 1"),
    "a machine without its regions": (lambda m: m["regions"].pop(), "E806", "not in exactly one region"),
    "a region twice": (lambda m: m["regions"][0].append(m["regions"][0][0]), "E806", "1536 of 12288"),
    "a region off the buffer": (
        lambda m: m["regions"][0][-1].update(offset=12_300),
        "E806",
        "exceeds the machine's",
    ),
    "a region off the axes": (lambda m: m["regions"][0][-1].update(box=[[0, 193]]), "E806", "exceeds its axes"),
    "axes of another size": (lambda m: m["regions"][0][-1].update(axes=[191]), "E806", "do not multiply to its shape"),
    "a box of two intervals": (
        lambda m: m["regions"][0][-1].update(box=[[0, 1], [0, 1]]),
        "E806",
        "one interval per axis",
    ),
    "another shape elsewhere": (lambda m: m["regions"][1][0].update(shape=[64, 192]), "E806", "another region says"),
}


@pytest.mark.parametrize(("change", "code", "words"), EDITS.values(), ids=EDITS.keys())
def test_a_wrong_manifest_says_what_is_wrong(tmp_path, change, code, words):
    written(tmp_path)
    edit(tmp_path, change)
    said = failure(tmp_path)
    assert code in said
    assert words in said


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"format": "new"}'])
def test_a_damaged_manifest_is_named(tmp_path, content):
    written(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    assert "manifest.json is damaged" in failure(tmp_path)


def test_a_shard_that_is_not_there_is_named(tmp_path):
    written(tmp_path)
    with pytest.raises(CheckpointError, match="has no shard 5"):
        open_checkpoint(tmp_path).read_slices(5)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot write shard 0") as caught:
        write_shard(tmp_path / "file", 0, [], SGD(0.1))
    assert "--out" in caught.value.fix
    with pytest.raises(CheckpointError, match=r"cannot write .*manifest\.json"):
        write_manifest(tmp_path / "file", Manifest([], [], []))


def test_slices_of_every_dtype_come_back(tmp_path):
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        [piece] = slice_parameters([5], 1)
        slice_state = SliceState(
            piece, torch.arange(5, dtype=dtype), {"sum": torch.ones(5, dtype=dtype)}, 7, {"worker-0.0": 7}
        )
        files = [write_shard(tmp_path, 0, [slice_state], Adagrad(0.1))]
        write_manifest(tmp_path, Manifest([piece], [[Region("w", [5], [5], [(0, 5)], 0)]], files))
        [found] = open_checkpoint(tmp_path).read_slices(0)
        assert found.value.dtype == dtype
        assert torch.equal(found.value, slice_state.value)
        assert torch.equal(found.state["sum"], slice_state.state["sum"])
        assert (found.slice, found.version, found.applied) == (piece, 7, {"worker-0.0": 7})
        assert load_checkpoint(tmp_path)["w"].dtype == dtype


axes_and_cuts = st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(1, 4), max_size=2)), min_size=1, max_size=4)


@given(axes_and_cuts, st.integers(1, 3), st.integers(1, 3))
@pytest.mark.run
def test_any_grid_of_regions_comes_back(described, merged, machines):
    axes, cuts = [size for size, _ in described], [inner for _, inner in described]
    shape = [math.prod(axes[:merged]), *axes[merged:]]  # the first axes make up one dimension
    whole = torch.arange(float(math.prod(axes))).reshape(shape)
    buffers, regions = packed(cut("w", whole, axes=axes, cuts=cuts, machines=machines), machines)
    with TemporaryDirectory() as folder:
        save(folder, buffers, regions, shards=2)
        assert equal(load_checkpoint(folder), {"w": whole})


def test_a_scalar_parameter_comes_back(tmp_path):
    buffers, regions = packed(cut("scale", torch.tensor(3.0), axes=(), cuts=(), machines=1), 1)
    save(tmp_path, buffers, regions, shards=1)
    assert equal(load_checkpoint(tmp_path), {"scale": torch.tensor(3.0)})


# A part of a checkpoint ----------------------------------------------------------------------------------------------


intervals = st.tuples(st.integers(0, 64), st.integers(0, 64)).map(lambda pair: tuple(sorted(pair)))


@settings(deadline=None)
@given(st.tuples(intervals, intervals, intervals, intervals))
@pytest.mark.run
def test_any_box_of_a_parameter_equals_that_of_the_whole(drawn):
    whole, buffers, regions = example(3)
    axes = (3, 4, 16, 64)
    box = tuple((min(a, size), min(b, size)) for (a, b), size in zip(drawn, axes, strict=True))
    with TemporaryDirectory() as folder:
        save(folder, buffers, regions, shards=2)
        checkpoint = open_checkpoint(folder)
        expected = whole["weight"].view(axes)[tuple(slice(*side) for side in box)]
        assert checkpoint.axes("weight") == axes
        assert torch.equal(checkpoint.read_box("weight", box), expected)


def test_a_box_in_other_axes(tmp_path):
    whole, _ = written(tmp_path)
    found = open_checkpoint(tmp_path).read_box("weight", ((64, 130), (3, 5)), (192, 64))
    assert torch.equal(found, whole["weight"][64:130, 3:5])


def test_little_more_than_the_box_is_read(tmp_path, monkeypatch):
    whole = {"w": torch.randn(4096, 1024)}
    buffers, regions = packed(cut("w", whole["w"], axes=(4096, 1024), cuts=([1024, 3000], []), machines=2), 2)
    save(tmp_path, buffers, regions, shards=3)
    counts, preadv = [], os.preadv
    monkeypatch.setattr("os.preadv", lambda file, parts, at: counts.append(preadv(file, parts, at)) or counts[-1])
    checkpoint = Checkpoint(tmp_path, open_checkpoint(tmp_path).manifest)
    counts.clear()
    assert torch.equal(checkpoint.read_box("w", ((1000, 1100), (0, 1024))), whole["w"][1000:1100])
    assert sum(counts) < 1.1 * 100 * 1024 * 4


WRONG_BOXES = {
    "of no tensor": (("other", ((0, 1),)), "no tensor 'other'"),
    "outside": (("bias", ((0, 193),)), r"box \[\(0, 193\)\].*axes \[192\]"),
    "of other dimensions": (("bias", ((0, 1), (0, 1))), "no box"),
    "in axes of another size": (("bias", ((0, 1),), (191,)), r"axes \[191\] of bias"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG_BOXES.values(), ids=WRONG_BOXES.keys())
def test_a_box_that_does_not_exist_is_named(tmp_path, arguments, words):
    written(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path).read_box(*arguments)


def test_buffers_and_frozen_parameters_are_part_of_a_checkpoint(tmp_path):
    _, buffers, regions = example()
    table, count = torch.randn(6, 4), torch.tensor(7)
    halves = [
        Region("table", [6, 4], [6, 4], [(0, 3), (0, 4)], 0),
        Region("table", [6, 4], [6, 4], [(2, 6), (0, 4)], 0),
    ]
    states = [
        write_state(tmp_path, 0, [(halves[0], table[:3])]),
        write_state(tmp_path, 1, [(halves[1], table[2:].t().contiguous().t()), (Region("n", [], [], [], 0), count)]),
    ]
    save(tmp_path, buffers, regions, shards=2, states=states)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names == ["weight", "bias", "table", "n"]
    assert "table" in checkpoint
    assert torch.equal(checkpoint.read_box("table", ((1, 5), (1, 3))), table[1:5, 1:3])
    assert torch.equal(checkpoint.read_tensor("table"), table)
    assert torch.equal(checkpoint.read_tensor("n"), count)
    save(tmp_path, buffers, regions, shards=2, states=states[:1])
    with pytest.raises(CheckpointError, match=r"does not hold all of box \[\(0, 6\), \(0, 4\)\] of table"):
        open_checkpoint(tmp_path).read_tensor("table")
    assert len(list(tmp_path.glob("state-*.safetensors"))) == 1  # what the manifest does not list is gone
