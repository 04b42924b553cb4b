"""A folder of safetensors files in the layout of Hugging Face's Hub: one file, or several with an index."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ...errors import BadInput
from ...ps.checkpoint.manifest import MANIFEST
from ...ps.checkpoint.streamed_safetensors import Layout, TensorReader
from ..run_folder import CHECKPOINT, WEIGHTS
from ..tensor_files import new_file

INDEX = WEIGHTS + ".index.json"
METADATA = {"format": "pt"}  # which transformers asks for
MAX_INDEX_BYTES = 64 << 20


def find_hub_files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder of this layout; none of another folder, as that of a run.

    BadInput E318 where the index is damaged, or names a file that is not there.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            if index.stat().st_size > MAX_INDEX_BYTES:
                raise ValueError("it is too large")
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [folder / Path(name).name for name in names]
            missing = [file.name for file in files if not file.is_file()]
            if missing:
                raise ValueError(f"there is no {missing[0]}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                "E318", f"no weights: {index} cannot be used: {error}", fix="copy the folder again"
            ) from error
        return files
    is_run = (folder / CHECKPOINT / MANIFEST).exists()
    return [folder / WEIGHTS] if (folder / WEIGHTS).is_file() and not is_run else []


def join_hub_files(files: list[Path], path: Path) -> Path:
    """Write the tensors of all files into one, a tensor at a time."""
    if len(files) == 1:
        return files[0]
    layouts: dict[str, Layout] = {}
    for file in files:
        with TensorReader(file) as reader:
            layouts |= reader.layouts
    with new_file(path, layouts) as writer:
        for file in files:
            with TensorReader(file) as reader:
                for name in reader.layouts:
                    writer.write(name, reader.tensor(name))
    return path


def write_hub_folder(folder: Path, weights: Mapping[str, Tensor], *, part_bytes: int) -> None:
    """Write weights into a new folder, in files of about so many bytes at most. OSError where that cannot be."""
    parts: list[dict[str, Tensor]] = [{}]
    for name, tensor in weights.items():
        if parts[-1] and sum(t.nbytes for t in parts[-1].values()) + tensor.nbytes > part_bytes:
            parts.append({})
        parts[-1][name] = tensor
    folder.mkdir()
    count, where = len(parts), dict[str, str]()
    for number, part in enumerate(parts, 1):
        file = WEIGHTS if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
        layouts = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in part.items()}
        with new_file(folder / file, layouts, metadata=METADATA) as writer:
            for name, tensor in part.items():
                writer.write(name, tensor)
        where |= dict.fromkeys(part, file)
    if count > 1:
        total = sum(tensor.nbytes for tensor in weights.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2, sort_keys=True)
        (folder / INDEX).write_text(text + "\n")
