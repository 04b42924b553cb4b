"""Models of transformers: one class of every model type, its configuration small, with what inputs it takes."""

import copy
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .selection import BATCH, Entry, Trial
from .small_configuration import SIZES, VOCABULARY, Size, shrink

# Tables of the library from model types to classes, in the order in which a type's class is chosen
TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION",
    "VIDEO_CLASSIFICATION",
    "CTC",
    "AUDIO_CLASSIFICATION",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "DEPTH_ESTIMATION",
    "",
)
LENGTH = 16  # of texts
FEW = 32 << 20  # parameters of a model that runs as it is, but for its layers


def list_entries() -> list[Entry]:
    """Return the entries of transformers."""
    tables = [(task, _table(task)) for task in TASKS]
    types = sorted({kind for _, table in tables for kind in table})
    return [Entry("transformers", kind, kind, next(task for task, table in tables if kind in table)) for kind in types]


def list_trials(entry: Entry) -> Iterator[Trial]:
    """Yield the ways in which a model may run: sizes, and for each the inputs that its class may take."""
    found = _table(entry.task)[entry.name]
    kind = getattr(importlib.import_module("transformers"), found if isinstance(found, str) else found[0])
    try:
        configurations = list(_configurations(kind))
    except ImportError as error:  # of what stands for a class that needs a package which is not there
        yield Trial(kind.__name__, _raise(error), dict)
        return
    for says, make in configurations:
        try:
            configuration = make()
        except Exception as error:
            yield Trial(f"{says}, {kind.__name__}", _raise(error), dict)
            continue
        for inputs, draw in _list_inputs(kind, configuration, entry.task):
            yield Trial(
                f"{kind.__name__}, {says}, {inputs}",
                lambda c=configuration: kind(copy.deepcopy(c)),
                draw,
                loss_inside="labels" in inputs,
            )


def _raise(error: Exception) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        raise error

    return make


def _table(task: str) -> Mapping[str, Any]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    name = f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES"
    table: Mapping[str, Any] = getattr(auto, name)
    return table


def _configurations(kind: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    config = kind.config_class
    for size in SIZES:
        yield f"hidden {size.hidden}", lambda s=size: _small(config, s)
    yield "only layers small", lambda: _few_layers(kind)


def _small(config: Any, size: Size) -> Any:
    fields = shrink(config().to_dict(), size)
    fields.pop("model_type", None)
    configuration = config(**fields)
    for name in ("pad_token_id", "decoder_start_token_id"):  # without which a batch, or a decoder, has no beginning
        if getattr(configuration, name, None) is None:
            setattr(configuration, name, 0)
    return configuration


def _few_layers(kind: Any) -> Any:
    """Return the default configuration with two layers; it raises where that has many parameters."""
    configuration = kind.config_class()
    for part in (configuration, *(v for v in vars(configuration).values() if hasattr(v, "to_dict"))):
        for name in ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers"):
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, 2)
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(copy.deepcopy(configuration)).parameters())
    if count > FEW:
        raise ValueError(f"with two layers it has {count} parameters")
    return configuration


# Inputs ------------------------------------------------------------------------------------------------------------

Draw = Callable[[], Mapping[str, Tensor]]


def _list_inputs(kind: Any, configuration: Any, task: str) -> Iterator[tuple[str, Draw]]:
    """Yield names of inputs and what draws them, with labels first, from the few that the main input suggests."""
    names = inspect.signature(kind.forward).parameters
    main = getattr(kind, "main_input_name", "input_ids")
    options = _main_inputs(main, configuration)
    if main != "input_ids" and "input_ids" in names:
        options += [{**option, "input_ids": _ids} for option in options]
    if main == "input_ids" and "pixel_values" in names:
        options += [{"input_ids": _ids, "pixel_values": draw} for draw in _pictures(configuration)]
    if main == "input_ids" and "decoder_input_ids" in names and "labels" not in names:
        options = [{**option, "decoder_input_ids": _ids} for option in options] + options
    if main != "input_ids" and "decoder_input_ids" in names:
        options += [{**option, "decoder_input_ids": _ids} for option in options]
    labels = _list_labels(task, configuration) if "labels" in names else []
    for option, label in itertools.product(options, [*labels, None]):
        drawn = option if label is None else {**option, "labels": label}
        yield ", ".join(drawn), lambda d=drawn: {name: draw() for name, draw in d.items()}


def _main_inputs(main: str, configuration: Any) -> list[dict[str, Callable[[], Tensor]]]:
    if main == "input_ids":
        return [{"input_ids": _ids}]
    if main in ("pixel_values", "pixel_values_videos"):
        return [{main: draw} for draw in _pictures(configuration)]
    if main == "input_features":
        bins = _first(configuration, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", default=80)
        frames = 2 * _first(configuration, "max_source_positions", default=64)
        shapes = [(BATCH, bins, frames), (BATCH, frames, bins), (BATCH, 1, 64, bins), (BATCH, 64, bins)]
        return [{main: lambda s=shape: torch.randn(s)} for shape in shapes]
    bins = _first(configuration, "num_mel_bins", default=80)
    length = _first(configuration, "max_length", default=128)
    shapes = [(BATCH, 4000), (BATCH, 1, 4000), (BATCH, length, bins), (BATCH, 32000)]
    return [{main: lambda s=shape: torch.randn(s)} for shape in shapes]


def _ids() -> Tensor:
    return torch.randint(3, VOCABULARY - 12, (BATCH, LENGTH))


def _pictures(configuration: Any) -> list[Callable[[], Tensor]]:
    vision = getattr(configuration, "vision_config", configuration)
    side = _first(vision, "image_size", "img_size", "crop_size", default=64)
    high, wide = side if isinstance(side, list | tuple) else (side, side)
    channels = _first(vision, "num_channels", "in_channels", "in_chans", default=3)
    frames = _first(vision, "num_frames", "frames_per_clip", default=4)
    shapes = [
        (BATCH, channels, high, wide),
        (BATCH, frames, channels, high, wide),
        (BATCH, channels, 64, 64),
        (BATCH, channels, 224, 224),
    ]
    return [lambda s=shape: torch.randn(s) for shape in shapes]


def _first(configuration: Any, *names: str, default: Any) -> Any:
    found = (getattr(configuration, name, None) for name in names)
    return next((value for value in found if value is not None), default)


def _list_labels(task: str, configuration: Any) -> list[Callable[[], Tensor]]:
    count = getattr(configuration, "num_labels", 2)
    if task in ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION"):
        return [lambda: torch.randint(0, count, (BATCH,))]
    if task == "SEMANTIC_SEGMENTATION":
        side = _first(configuration, "image_size", default=64)
        return [lambda s=s: torch.randint(0, count, (BATCH, s, s)) for s in {side, 64} if isinstance(s, int)]
    if task == "CTC":
        return [lambda: torch.randint(1, 20, (BATCH, 4))]
    return [_ids]
