"""`TrainedModel`: a model's weights and what its optimizer remembers, by names; read from a run, and written as one."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import BadInput, UsageError
from ...ps.checkpoint.manifest import MANIFEST, Manifest
from ...ps.checkpoint.read_checkpoint import Checkpoint
from ...ps.checkpoint.shard_file import read_header
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.checkpoint.write_checkpoint import write_manifest, write_shard, write_state
from ...ps.optimizers.parameter_groups import EMA, Averaged, Grouped
from ...ps.optimizers.rates import PlainOptimizer, RatedOptimizer, Scaled, Scheduled
from ...ps.optimizers.registry import AnyOptimizer, parse_optimizer
from ...ps.slices.region import Region
from ...ps.slices.slice_state import SliceState
from ...ps.slices.slicing import slice_parameters
from ...runtime.worker.flat_layout import find_flat_dtype
from ..job.checkpoint_order import order_checkpoints
from ..job.export_weights import NAMES
from ..job.resume import find_checkpoint
from ..run_folder import BEST as BEST_FOLDER
from ..run_folder import BEST_WEIGHTS, CHECKPOINT, EMA_WEIGHTS, WEIGHTS

LAST, BEST, AVERAGE = "last", "best", "ema"
FILES = {LAST: WEIGHTS, BEST: BEST_WEIGHTS, AVERAGE: EMA_WEIGHTS}

# By optimizer: how torch calls what it remembers of a parameter; "step" is a number of its own there.
TORCH_NAMES = {
    "sgd": {"momentum": "momentum_buffer"},
    "adagrad-torch": {"sum": "sum"},
    "rmsprop": {"square": "square_avg", "momentum": "momentum_buffer", "mean": "grad_avg"},
    "adam": {"mean": "exp_avg", "square": "exp_avg_sq"},
    "adamw": {"mean": "exp_avg", "square": "exp_avg_sq"},
}
TORCH_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad-torch": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
COUNTED = ("adagrad-torch", "rmsprop", "adam", "adamw")  # those whose state has the number of the update in torch


@dataclass
class TrainedModel:
    """weights: the state_dict. optimizer: its name here, "" where nothing is known of one.

    There are state and groups only where torch has the same optimizer.

    state: by name of a trained parameter, what the optimizer remembers of it, by the names of torch. groups: options of
    the optimizer by name, each with the "params" that it has. updates: that were made.
    """

    weights: dict[str, Tensor]
    optimizer: str = ""
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    updates: int = 0


def _read_weights(source: Path, which: str) -> dict[str, Tensor]:
    """Return a run's weights: of its end, or where it was saved last, the best, or their average.

    UsageError where it has none.
    """
    path = source if source.is_file() else source / FILES[which]
    if path.is_file():
        with TensorReader(path) as reader:
            return {name: reader.tensor(name) for name in reader.layouts}
    if not source.exists():
        raise UsageError("E239", f"there is no {source}", fix="name a run folder, or a safetensors file")
    saved = {LAST: source, BEST: source / BEST_FOLDER}.get(which)  # of a run that was interrupted
    if saved is None or not _has_checkpoint(saved):
        fixes = {
            LAST: "name a run that has saved",
            BEST: "train with --monitor",
            AVERAGE: "train with --ema, to the end",
        }
        raise UsageError("E239", f"{source} has no {FILES[which]}", fix=fixes[which])
    return _read_checkpoint(find_checkpoint(saved))


def _read_checkpoint(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the whole weights that a checkpoint holds. UsageError where it holds a part: no tied and unused ones."""
    names = checkpoint.manifest.about.get(NAMES) or checkpoint.names
    missing = [name for name in names if name not in checkpoint]
    if missing:
        facts = f"{checkpoint.folder} has no {missing[0]}, which is tied to another parameter, or not used"
        raise UsageError("E239", facts, fix="train to the end, which writes the whole model: --resume")
    return {name: checkpoint.read_tensor(name) for name in names}


def read_trained(source: Path, which: str = LAST) -> TrainedModel:
    """Read the weights of a run, and with those of its end, or that were saved last, what the optimizer remembers."""
    checkpoint = find_checkpoint(source) if which == LAST and not source.is_file() and _has_checkpoint(source) else None
    if checkpoint is None or checkpoint.folder == source / CHECKPOINT:
        model = TrainedModel(_read_weights(source, which))
    else:  # it was saved after the end of the run whose weights may be there
        model = TrainedModel(_read_checkpoint(checkpoint))
    if checkpoint is None:
        return model
    order = {name: place for place, name in enumerate(checkpoint.manifest.about.get(NAMES, []))}
    model.weights = dict(sorted(model.weights.items(), key=lambda item: order.get(item[0], len(order))))
    first = checkpoint.manifest.files[0]
    with TensorReader(checkpoint.folder / first.name) as reader:
        model.updates = max((one.version for one in read_header(reader).slices), default=0)
    _read_optimizer(checkpoint, checkpoint.read_optimizer(first.shard), model)
    return model


def _has_checkpoint(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() or bool(order_checkpoints(folder).folders)


def _read_optimizer(checkpoint: Checkpoint, optimizer: AnyOptimizer, model: TrainedModel) -> None:
    model.optimizer = optimizer.name
    if optimizer.name not in TORCH_OPTIMIZERS:
        return
    inner = optimizer.inner if isinstance(optimizer, Averaged) else optimizer
    options = inner.optimizers if isinstance(inner, Grouped) else [inner]
    names = TORCH_NAMES[optimizer.name]
    members: list[list[str]] = [[] for _ in options]
    places = {name: place for place, name in enumerate(model.weights)}  # torch goes by the order of the model
    for name in sorted(checkpoint.trained_names, key=lambda name: places.get(name, len(places))):
        members[_find_group(checkpoint, inner, name)].append(name)
        box = tuple((0, size) for size in checkpoint.axes(name))
        model.state[name] = {
            names.get(state, state): checkpoint.read_box(name, box, state=state).reshape(checkpoint.shape(name))
            for state in checkpoint.state_names()
            if state != EMA
        }
        if optimizer.name in COUNTED:
            model.state[name]["step"] = torch.tensor(float(model.updates))
    for one, own in zip(options, members, strict=True):
        model.groups.append({"params": own, **_list_options(one)})


def _find_group(checkpoint: Checkpoint, optimizer: RatedOptimizer | Grouped, name: str) -> int:
    """Return the number of the group that a parameter is in: the first whose range ends after its beginning."""
    if not isinstance(optimizer, Grouped):
        return 0
    machine, region = next(
        (m, region)
        for m, regions in enumerate(checkpoint.manifest.regions)
        for region in regions
        if region.name == name
    )
    return next(which for end, which in optimizer.ranges[machine] if end > region.offset)


def _list_options(optimizer: RatedOptimizer) -> dict[str, Any]:
    """Return the options as torch has them; those that are only torch's as they are by default, which it demands."""
    plain: PlainOptimizer | Scaled = optimizer.inner if isinstance(optimizer, Scheduled) else optimizer
    options = dict(msgspec.to_builtins(plain.inner if isinstance(plain, Scaled) else plain))
    options.pop("type", None)
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    if "initial" in options:
        options["initial_accumulator_value"] = options.pop("initial")
    twin = TORCH_OPTIMIZERS.get(optimizer.name)
    defaults = {} if twin is None else twin([torch.zeros(1)]).defaults
    return {**defaults, **options}


def write_checkpoint(model: TrainedModel, folder: Path, about: Mapping[str, Any]) -> None:
    """Write a run folder with a checkpoint of the weights and the optimizer's state, from which a run resumes.

    about: what the manifest says of the run. BadInput E349 where the state is not that of one optimizer here.
    """
    names = {theirs: ours for ours, theirs in TORCH_NAMES[model.optimizer].items()}
    trained = list(model.state)
    kinds = {frozenset(model.state[name]) - {"step"} for name in trained}
    if len(kinds) != 1 or not kinds <= {frozenset(some) for some in [*_subsets(names)]}:
        facts = f"the state of the optimizer is {', '.join(sorted({n for kind in kinds for n in kind}))}"
        raise BadInput("E349", f"{facts}, which {model.optimizer} does not have", fix="name another --optimizer")
    dtype = find_flat_dtype(model.weights[name].dtype for name in trained)
    regions, offset = list[Region](), 0
    for name in trained:
        shape = list(model.weights[name].shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += model.weights[name].numel()

    def join(tensors: list[Tensor]) -> Tensor:
        return torch.cat([torch.empty(0, dtype=dtype), *(tensor.reshape(-1).to(dtype) for tensor in tensors)])

    values = join([model.weights[name] for name in trained])
    states = {names[t]: join([model.state[name][t] for name in trained]) for t in sorted(*kinds)}
    slices = slice_parameters([offset], 1)
    pieces = [
        SliceState(
            one, values[one.start : one.stop], {n: s[one.start : one.stop] for n, s in states.items()}, model.updates
        )
        for one in slices
    ]
    others = [(name, tensor) for name, tensor in model.weights.items() if name not in model.state]
    boxes = [(Region(n, list(t.shape), list(t.shape), [(0, k) for k in t.shape], 0), t) for n, t in others]
    target = folder / CHECKPOINT
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise UsageError("E222", f"cannot write {target}: {error}", fix="--out FOLDER that does not exist") from error
    optimizer = parse_optimizer(model.optimizer, 1.0)
    manifest = Manifest(
        slices,
        [regions],
        [write_shard(target, 0, pieces, optimizer)],
        [write_state(target, 0, boxes)],
        {"run": 0, "written": time.time(), "optimizer": model.optimizer, NAMES: list(model.weights), **about},
    )
    write_manifest(target, manifest)


def _subsets(names: Mapping[str, str]) -> list[set[str]]:
    """Return the sets of state that an optimizer may have, as options choose them."""
    found = [set[str]()]
    for name in names:
        found += [one | {name} for one in found]
    return found
