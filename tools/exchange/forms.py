"""The forms that weights and optimizer state have elsewhere: written from a `TrainedModel`, and read as one.

torch: one file of torch.save, {"model": state_dict, "optimizer": state_dict}, which torch.load(weights_only=True)
reads. dcp: a folder of torch.distributed.checkpoint with the same two, the optimizer's by names of parameters. hf: a
folder of safetensors files in the layout of Hugging Face's Hub, which has weights alone.
"""

import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from ...errors import BadInput, UsageError
from ..blame import describe_error
from ..task.hub_layout import find_hub_files, write_hub_folder
from ..tensor_files import save_state
from .trained_model import TORCH_NAMES, TrainedModel

TORCH, DCP, HF = "torch", "dcp", "hf"
FORMS = (TORCH, DCP, HF)
MODELS, OPTIMIZERS = ("model", "state_dict", "model_state_dict"), ("optimizer", "optimizer_state_dict")
_NOT_TRAINED = re.compile(r"(running_mean|running_var|num_batches_tracked)$")


def write_form(form: str, out: Path, model: TrainedModel, *, part_bytes: int) -> None:
    """Write a model in a form. part_bytes: of a file of the Hub's layout. UsageError where something is at `out`."""
    if os.path.lexists(out):
        raise UsageError("E232", f"{out} exists; nothing is written over it", fix="--out another path")
    optimizer = {} if not model.groups else {"optimizer": _number_optimizer(model)}
    temporary = out.with_name(f"{out.name}.tmp")
    try:
        if form == HF:
            write_hub_folder(out, model.weights, part_bytes=part_bytes)
        elif form == TORCH:
            torch.save({"model": model.weights, **optimizer}, temporary)
            os.replace(temporary, out)
        else:
            named = {} if not model.groups else {"optimizer": {"state": model.state, "param_groups": model.groups}}
            with _in_one_process():
                save_distributed({"model": model.weights, **named}, checkpoint_id=temporary, no_dist=True)
            os.replace(temporary, out)
    except OSError as error:
        raise UsageError("E222", f"cannot write {out}: {error}", fix="--out PATH with enough space") from error
    finally:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def _number_optimizer(model: TrainedModel) -> dict[str, Any]:
    """Return the state_dict of torch's optimizer, whose parameters have numbers; param_names has their names."""
    numbers = {name: number for number, name in enumerate(n for group in model.groups for n in group["params"])}
    state = {numbers[name]: state for name, state in model.state.items() if state}
    groups = [
        {**group, "params": [numbers[name] for name in group["params"]], "param_names": group["params"]}
        for group in model.groups
    ]
    return {"state": state, "param_groups": groups}


@contextmanager
def _in_one_process() -> Iterator[None]:
    """Have torch not warn that there is no other process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process", category=UserWarning)
        yield


def find_form(source: Path) -> str:
    """Return the form of what is at a path. BadInput E349 where it has none."""
    if not source.exists():
        raise BadInput("E349", f"there is no {source}", fix="check the path")
    if (source / ".metadata").is_file():
        return DCP
    if find_hub_files(source) or source.suffix == ".safetensors":
        return HF
    if source.is_file():
        return TORCH
    facts = f"{source} is no file of torch, no distributed checkpoint and no folder of safetensors"
    raise BadInput("E349", facts, fix="name one of these")


def read_form(source: Path, *, trust: bool = False) -> TrainedModel:
    """Read what is at a path. trust: also a distributed checkpoint, whose metadata torch unpickles.

    BadInput E349 where it cannot be read, or is not trusted.
    """
    form = find_form(source)
    if form == DCP and not trust:
        facts = f"torch reads the metadata of {source} by unpickling them, which runs what they say"
        raise BadInput("E349", facts, fix="--trust, if you know where it comes from")
    try:
        if form == HF:
            return TrainedModel(_read_safetensors(source))
        return _split(_read_dcp(source) if form == DCP else torch.load(source, map_location="cpu", weights_only=True))
    except BadInput:
        raise
    except Exception as error:  # torch has no class for it
        raise BadInput("E349", f"{source} cannot be read: {describe_error(error)}", fix="write it again") from error


def _read_safetensors(source: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    files = find_hub_files(source) or [source]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _read_dcp(source: Path) -> dict[str, Any]:
    """Return the whole contents of a distributed checkpoint."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    found: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    with _in_one_process():
        _load_state_dict(found, storage_reader=FileSystemReader(source), planner=planner, no_dist=True)
    return found


def _split(found: Any) -> TrainedModel:
    """Return the weights, and the optimizer's state, of what a file holds."""
    if not isinstance(found, Mapping):
        raise BadInput("E349", f"it holds a {type(found).__name__}", fix='save {"model": model.state_dict(), ...}')
    weights = next((found[key] for key in MODELS if isinstance(found.get(key), Mapping)), found)
    plain = {name: tensor.detach() for name, tensor in weights.items() if isinstance(tensor, Tensor)}
    if not plain:
        raise BadInput("E349", "it holds no tensors by name", fix='save {"model": model.state_dict(), ...}')
    model = TrainedModel({name: tensor.contiguous() for name, tensor in plain.items()})
    saved = next((found[key] for key in OPTIMIZERS if isinstance(found.get(key), Mapping)), None)
    if saved is not None and saved.get("state"):
        _read_optimizer(saved, model)
    return model


def _read_optimizer(saved: Mapping[str, Any], model: TrainedModel) -> None:
    """Take over what an optimizer of torch remembers, whose parameters have names or numbers."""
    groups = saved["param_groups"]
    keys = [key for group in groups for key in group["params"]]
    names = [name for group in groups for name in group.get("param_names", [])]
    if all(isinstance(key, str) for key in keys):
        names = keys
    elif len(names) != len(keys):  # those of several groups may be in any order
        names = [name for name in model.weights if not _NOT_TRAINED.search(name)] if len(groups) == 1 else []
    by_key = dict(zip(keys, names, strict=False))
    states = {by_key.get(key): dict(state) for key, state in saved["state"].items()}
    fits = len(names) == len(keys) and all(
        name in model.weights and value.shape in (model.weights[name].shape, torch.Size([]))
        for name, state in states.items()
        for value in state.values()
        if isinstance(value, Tensor)
    )
    if not fits:
        facts = "nothing says which of its parameters the state of the optimizer is of"
        raise BadInput("E349", facts, fix="make the optimizer of model.named_parameters(), and save it again")
    steps = [float(state.pop("step")) for state in states.values() if "step" in state]
    model.state = {name: {n: t for n, t in s.items() if isinstance(t, Tensor)} for name, s in states.items() if name}
    model.updates = int(max(steps, default=0))
    model.optimizer = _name_optimizer(model, groups[0])


def _name_optimizer(model: TrainedModel, group: Mapping[str, Any]) -> str:
    """Return the name here of the optimizer that such a state is of, "" if none is."""
    has = {name for state in model.state.values() for name in state}
    if "exp_avg" in has:
        return "adamw" if group.get("decoupled_weight_decay") else "adam"
    known = {name: set(names.values()) for name, names in TORCH_NAMES.items()}
    return next((name for name in ("sgd", "adagrad-torch", "rmsprop") if has and has <= known[name]), "")


def save_weights(out: Path, model: TrainedModel) -> None:
    """Write the weights as a plain state_dict in a safetensors file, for --init."""
    if os.path.lexists(out):
        raise UsageError("E232", f"{out} exists; nothing is written over it", fix="--out another path")
    save_state(out, model.weights)
