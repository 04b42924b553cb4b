"""`Manifest`: the checkpoint manifest, `manifest.json` - the files of a checkpoint, and where every parameter lies."""

from typing import Annotated, Any

import msgspec

from ..slices.region import Region
from ..slices.slicing import ParameterSlice

FORMAT = 3  # of the manifest and of the headers of shard files
MANIFEST = "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0)]
Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ShardFile(msgspec.Struct, frozen=True):
    """The manifest's entry of a shard's file."""

    shard: Count
    sha256: Hash
    bytes: Count

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return f"shard-{self.shard}.{self.sha256[:16]}.safetensors"


class StateFile(msgspec.Struct, frozen=True):
    """The manifest's entry of a file with what a machine holds that is not trained: buffers and frozen parameters.

    pieces: their regions, whose offsets mean nothing here; the file names the tensor of each by its position.
    """

    machine: Count
    sha256: Hash
    bytes: Count
    pieces: list[Region]

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return f"state-{self.machine}.{self.sha256[:16]}.safetensors"


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a checkpoint.

    slices: of all shards. regions: by machine, where its trained parameters lie in its flat buffer. files: of the
    shards. states: of what is not trained, as replica 0 has it. about: facts about the run, for whoever resumes it.
    """

    slices: list[ParameterSlice]
    regions: list[list[Region]]
    files: list[ShardFile]
    states: list[StateFile] = []
    about: dict[str, Any] = {}
    format: int = FORMAT

    @property
    def all_files(self) -> list[ShardFile | StateFile]:
        """The files of shards and of machines."""
        return [*self.files, *self.states]
