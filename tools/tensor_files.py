"""Files of tensors that are written whole or not at all."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from ..errors import UsageError
from ..ps.checkpoint.streamed_safetensors import Layout, TensorWriter
from ..ps.checkpoint.write_checkpoint import rename_durably


def name_unfinished(path: Path) -> Path:
    """Return the name that a file has until all of it is written."""
    return path.with_name(path.name + ".tmp")


@contextmanager
def new_file(
    path: Path, layouts: Mapping[str, Layout], *, metadata: Mapping[str, str] | None = None
) -> Iterator[TensorWriter]:
    """Open a file to write tensors to, with metadata. It appears under its name once all of them are written.

    Raises UsageError where it cannot be written.
    """
    temporary = name_unfinished(path)
    try:
        with TensorWriter(temporary, layouts, metadata=dict(metadata or {})) as writer:
            yield writer
            writer.finish()
        rename_durably(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER with enough space") from error


def save_state(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors by name. Raises UsageError where the file cannot be written."""
    with new_file(path, {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    return path
