"""The command, and placements and run results made by hand, for the pictures, pages and terminal output."""

from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
import pytest
from command_line import cutset as cutset
from command_line import roleless as roleless

from cutset.partition.placement.placement_file import (
    FORMAT,
    BoxPlacement,
    CandidateScore,
    Fingerprint,
    Loop,
    MachinePlacement,
    OpPlacement,
    Placement,
    Prediction,
    RejectedCandidate,
    TimelineSpan,
    Traffic,
)

Loops = dict[str, int]


def slices(loops: Loops, machines: list[int], *cut: str) -> list[BoxPlacement]:
    """Boxes that cut one or two loops evenly among the machines, row by row."""
    if not cut or len(machines) == 1:
        return [BoxPlacement([(0, size) for size in loops.values()], machines[0])]
    rows = len(machines) if len(cut) == 1 else round(len(machines) ** 0.5)
    columns = len(machines) // rows
    pieces = []
    for i, machine in enumerate(machines):
        at = {cut[0]: (i // columns, rows)}
        if len(cut) > 1:
            at[cut[1]] = (i % columns, columns)
        box = [
            (size * at[name][0] // at[name][1], size * (at[name][0] + 1) // at[name][1]) if name in at else (0, size)
            for name, size in loops.items()
        ]
        pieces.append(BoxPlacement(box, machine))
    return pieces


def make_op(
    name: str,
    kind: str,
    inputs: list[str],
    loops: Loops,
    boxes: list[BoxPlacement],
    *,
    weight: float = 2.0,
    reduction: str = "",
) -> OpPlacement:
    nest = [Loop(axis, size, "reduction" if axis == reduction else "parallel") for axis, size in loops.items()]
    flops = weight * prod(loops.values())
    return OpPlacement(name, f"aten.{kind}.default", name.rpartition(".")[0] or name, inputs, flops, nest, boxes)


def everyone(tensor: str, count: int, machines: int) -> list[Traffic]:
    """Every machine sends its part of the tensor to every other one."""
    return [Traffic(tensor, s, t, count) for s in range(machines) for t in range(machines) if s != t]


def timeline(machines: int, ops: list[OpPlacement]) -> list[TimelineSpan]:
    """Forward in order, backward in reverse, each op as long as its work, and a send after every fourth."""
    spans = []
    for machine in range(machines):
        at = 0.0
        for kind, order in (("forward", ops), ("backward", ops[::-1])):
            for i, op in enumerate(order):
                took = max(op.flops, 1e3) * (1 + (kind == "backward")) / machines * 1e-10 * (1 + 0.05 * machine)
                spans.append(TimelineSpan(machine, kind, op.name, at, at + took))
                if i % 4 == 0:
                    spans.append(TimelineSpan(machine, "send", op.name, at + took, at + 2.2 * took))
                at += took * 1.1
    return spans


def make_placement(
    ops: list[OpPlacement], machines: int, traffic: list[Traffic], *, model: str = "cutset.models:example"
) -> Placement:
    flops = [0.0] * machines
    for op in ops:
        total = sum(prod(b - a for a, b in piece.box) for piece in op.boxes) or 1
        for piece in op.boxes:
            flops[piece.machine] += 3 * op.flops * prod(b - a for a, b in piece.box) / total
    spans = timeline(machines, ops)
    step = max(span.stop_s for span in spans)
    one = sum(flops) / 3e10
    held = [
        MachinePlacement(f"machine-{i}", 3e10, 8 << 30, work, work / 3e10, (5 + i % 5) << 29, 300_000 + 7 * i)
        for i, work in enumerate(flops)
    ]
    crossing = sum(item.bytes for item in traffic)
    return Placement(
        format=FORMAT,
        model=model,
        batch=32,
        micro_batches=1,
        fingerprint=Fingerprint([("weight", [4, 4], "float32")], "0" * 64),
        machines=held,
        ops=ops,
        parameters=[],
        winner="metis, all axes",
        objective="time",
        verdict=f"{machines} machines are 1.62 times as fast as one, by the prediction.",
        predicted=Prediction(step, one, step / 2, crossing, len(traffic), traffic, spans),
        candidates=[
            CandidateScore("one machine", 1, one, 0, 6 << 30, True, min_load=0.9),
            CandidateScore("slices of every layer", machines, step * 1.3, crossing * 2, 4 << 30, True, min_load=0.9),
            CandidateScore("metis, all axes", machines, step, crossing, 4 << 30, True, min_load=0.9),
            CandidateScore("pipeline", machines, step * 1.9, crossing // 2, 9 << 30, False, min_load=0.9),
        ],
        rejected=[RejectedCandidate("tiles 1x2", "no operator slides over an image of that size")],
        seed=0,
        versions={"cutset": "0.1.0", "torch": "2.13.0"},
    )


def make_mlp() -> Placement:
    """784-512-512-10 over two machines in slices of units."""
    ops: list[OpPlacement] = []
    before: list[str] = []
    for i, (units, inputs) in enumerate(((512, 784), (512, 512), (10, 512))):
        loops = {"batch": 32, f"units{i}": units, f"units{i - 1}" if i else "pixels": inputs}
        boxes = slices(loops, [0, 1], f"units{i}")
        ops.append(make_op(f"layers.{2 * i}", "linear", before, loops, boxes, reduction=list(loops)[2]))
        before = [ops[-1].name]
        if i == 2:
            break
        flat = {"batch": 32, f"units{i}": units}
        ops.append(make_op(f"layers.{2 * i + 1}", "relu", before, flat, slices(flat, [0, 1], f"units{i}"), weight=1))
        before = [ops[-1].name]
    last = {"batch": 32, "units2": 10}
    ops.append(make_op("loss", "cross_entropy_loss", before, last, slices(last, [0])))
    traffic = [*everyone("layers.1", 32768, 2), *everyone("layers.3", 32768, 2), Traffic("layers.4", 1, 0, 640)]
    return make_placement(ops, 2, traffic, model="cutset.models:mnist")


def make_tiles() -> Placement:
    """Three locally connected layers in 2 x 2 tiles over four machines, with halos."""
    ops: list[OpPlacement] = []
    before: list[str] = []
    traffic: list[Traffic] = []
    for i, side in enumerate((24, 22, 20)):
        loops = {"batch": 32, "channels": 8, "rows": side, "columns": side, "window": 72}
        boxes = slices(loops, [0, 1, 2, 3], "rows", "columns")
        ops.append(make_op(f"local{i}.filter", "local2d", before, loops, boxes, reduction="window"))
        image = {"batch": 32, "channels": 8, "rows": side, "columns": side}
        tiles = slices(image, [0, 1, 2, 3], "rows", "columns")
        ops.append(make_op(f"local{i}.relu", "relu", [ops[-1].name], image, tiles, weight=1))
        ops.append(make_op(f"local{i}.dropout", "dropout", [ops[-1].name], image, tiles, weight=1))
        before = [ops[-1].name]
        if i < 2:
            near, far = 4 * 32 * 8 * side, 4 * 32 * 8 * 4
            traffic += [
                Traffic(before[0], s, t, far if s + t == 3 else near) for s in range(4) for t in range(4) if s != t
            ]
    flat = {"batch": 32, "features": 3200}
    whole = {"batch": 32, "classes": 10, "features": 3200}
    last = {"batch": 32, "classes": 10}
    ops.append(make_op("head.flatten", "flatten", before, flat, slices(flat, [0]), weight=0))
    ops.append(make_op("head.linear", "linear", ["head.flatten"], whole, slices(whole, [0]), reduction="features"))
    ops.append(make_op("loss", "cross_entropy_loss", ["head.linear"], last, slices(last, [0])))
    traffic += [Traffic("local2.dropout", s, 0, 4 * 32 * 800) for s in (1, 2, 3)]
    return make_placement(ops, 4, traffic, model="cutset.models:digits_local")


def make_transformer(layers: int, machines: int) -> Placement:
    """Ten operators a layer, cut along heads and hidden units as Megatron does, light ones by tokens."""
    group = list(range(machines))
    tokens, wide, heads, hidden = 512, 256, max(16, machines), 1024
    ops: list[OpPlacement] = []
    traffic: list[Traffic] = []
    stream: list[str] = []

    def add(
        name: str, kind: str, inputs: list[str], loops: Loops, cut: str, *, weight: float = 2.0, fold: str = ""
    ) -> str:
        ops.append(make_op(name, kind, inputs, loops, slices(loops, group, cut), weight=weight, reduction=fold))
        return name

    for i in range(layers):
        flat = {"tokens": tokens, "model": wide}
        norm1 = add(f"layers.{i}.norm1", "layer_norm", stream, flat, "tokens", weight=8)
        qkv = add(
            f"layers.{i}.qkv",
            "linear",
            [norm1],
            {"tokens": tokens, "heads": heads, "model": wide, "three": 48},
            "heads",
        )
        attention = {"heads": heads, "tokens": tokens, "keys": tokens, "head": 16}
        mix = add(f"layers.{i}.attention", "scaled_dot_product_attention", [qkv], attention, "heads")
        joined = {"tokens": tokens, "model": wide, "heads": heads, "head": 16}
        out = add(f"layers.{i}.out", "linear", [mix], joined, "heads", fold="heads")
        add1 = add(f"layers.{i}.add1", "add", [out, *stream], flat, "tokens", weight=1)
        norm2 = add(f"layers.{i}.norm2", "layer_norm", [add1], flat, "tokens", weight=8)
        up = add(f"layers.{i}.up", "linear", [norm2], {"tokens": tokens, "hidden": hidden, "model": wide}, "hidden")
        act = add(f"layers.{i}.gelu", "gelu", [up], {"tokens": tokens, "hidden": hidden}, "hidden", weight=8)
        down = {"tokens": tokens, "model": wide, "hidden": hidden}
        low = add(f"layers.{i}.down", "linear", [act], down, "hidden", fold="hidden")
        add2 = add(f"layers.{i}.add2", "add", [low, add1], flat, "tokens", weight=1)
        stream = [add2]
        for tensor in (norm1, out, norm2, low):
            traffic += everyone(tensor, 4 * tokens * wide // machines, machines)
    return make_placement(ops, machines, traffic, model="examples/gpt.py:small")


def make_branches() -> Placement:
    """Four parallel branches of different length and a skip over everything, on three machines."""
    ops: list[OpPlacement] = []

    def add(name: str, inputs: list[str], machine: int) -> str:
        loops = {"batch": 8, "channels": 64, "rows": 32, "columns": 32}
        boxes = slices(loops, [0, 1, 2], "rows") if machine < 0 else slices(loops, [machine])
        ops.append(make_op(name, "conv2d", inputs, loops, boxes))
        return name

    stem = add("stem", [], -1)
    ends = []
    for branch in range(4):
        before = stem
        for i in range(branch + 1):
            before = add(f"branch{branch}.conv{i}", [before], branch % 3)
        ends.append(before)
    join = add("join", [*ends, stem], -1)
    add("head", [join, stem], 0)
    traffic = [*everyone("stem", 262144, 3), *everyone("join", 65536, 3), Traffic("branch2.conv2", 2, 0, 131072)]
    ops[0] = msgspec.structs.replace(ops[0], reads=["weight of <stem>"])
    traffic += [Traffic("weight of <stem>", 0, 1, 4096), Traffic("branch3.conv3", 0, 2, 999)]
    return make_placement(ops, 3, traffic, model="nets.py:inception")


def make_result() -> dict[str, Any]:
    """What a run of `cutset demo` hands to the report."""

    def curve(final: float, seconds: float, lag: float) -> list[dict[str, Any]]:
        rise = [final - (final - 0.1) * lag**i for i in range(13)]
        return [
            {"seconds": seconds * i / 12, "samples": 1500 * i, "test_accuracy": y, "test_loss": 1 - y, "metrics": {}}
            for i, y in enumerate(rise)
        ]

    def losses(lag: float, noise: int) -> list[list[float]]:
        return [[50.0 * i, 2.3 * lag**i + 0.02 * ((i * noise) % 7) / (1 + i / 40)] for i in range(1, 360)]

    one = {
        "name": "one process", "processes": 1, "threads": 1, "samples": 18000, "seconds": 9.4, "samples_per_s": 1914.9,
        "test_accuracy": 0.972, "test_loss": 0.08, "metrics": {},
        "time_to_target_s": 4.1, "target": 0.95, "staleness_mean": None, "staleness_max": None,
        "bytes_per_step": None, "curve": curve(0.972, 9.4, 0.55), "losses": losses(0.975, 3),
    }  # fmt: skip
    many = {
        "name": "downpour 2 machines x 2 replicas", "processes": 6, "threads": 1, "samples": 18000, "seconds": 14.8,
        "samples_per_s": 1216.2, "test_accuracy": 0.966, "test_loss": 0.1, "metrics": {},
        "time_to_target_s": 7.9, "target": 0.95,
        "staleness_mean": 1.04, "staleness_max": 4, "bytes_per_step": 151552.0,
        "curve": curve(0.966, 14.8, 0.6), "losses": losses(0.98, 5),
    }  # fmt: skip
    workers = [f"worker-{replica}.{machine}" for replica in (0, 1) for machine in (0, 1)]
    pairs = [(worker, shard) for worker in workers for shard in ("shard-0", "shard-1")]
    pairs += [(workers[0], workers[1]), (workers[1], workers[0]), (workers[2], workers[3]), (workers[3], workers[2])]
    return {
        "task": "digits",
        "verdict": "Downpour reaches 96.6 %, one process 97.2 %, at the same 18000 samples.",
        "notes": ["6 processes share 2 cores: the seconds say little about six machines."],
        "rows": [one, many],
        "staleness": {worker: {"0": 120, "1": 300, "2": 60, "3": i} for i, worker in enumerate(workers)},
        "links": [
            {"source": s, "target": t, "bytes": 1_500_000 + i, "messages": 480} for i, (s, t) in enumerate(pairs)
        ],
        "settings": {
            "method": "downpour",
            "optimizer": "adagrad",
            "lr": 0.05,
            "machines": 2,
            "replicas": 2,
            "shards": 2,
        },
        "versions": {"cutset": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
    }


@pytest.fixture
def mlp() -> Placement:
    return make_mlp()


@pytest.fixture
def tiles() -> Placement:
    return make_tiles()


@pytest.fixture
def branches() -> Placement:
    return make_branches()


@pytest.fixture
def transformer() -> Callable[[int, int], Placement]:
    return make_transformer


@pytest.fixture(params=["mlp", "tiles", "branches", "transformer", "wide"])
def placement(request: pytest.FixtureRequest) -> Placement:
    """Every example in turn, up to two hundred operators on eighteen machines."""
    makers = {"mlp": make_mlp, "tiles": make_tiles, "branches": make_branches}
    layers, machines = (20, 18) if request.param == "wide" else (4, 4)
    return makers[request.param]() if request.param in makers else make_transformer(layers, machines)


@pytest.fixture
def result() -> dict[str, Any]:
    return make_result()
