"""`Manifest`: what a checkpoint consists of - the files of shards and of machines, and where every parameter lies."""

from typing import Annotated, Any

import msgspec

from ..slices.slicing import Slice
from ..slices.region import Region

FORMAT = 2
MANIFEST = "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0)]
Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ShardFile(msgspec.Struct, frozen=True):
    """A shard's file as the manifest lists it."""

    shard: Count
    sha256: Hash
    bytes: Count

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return f"shard-{self.shard}.{self.sha256[:16]}.safetensors"


class StateFile(msgspec.Struct, frozen=True):
    """What a machine holds that is not trained: buffers and frozen parameters.

    pieces: boxes of them; the tensor of each is called by its position here. Their offsets say nothing.
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
    """What a checkpoint consists of.

    regions: by machine, where its trained parameters lie; states: files of what is not trained, of replica 0; about:
    facts for the reader.
    """

    slices: list[Slice]
    regions: list[list[Region]]
    files: list[ShardFile]
    states: list[StateFile] = []
    about: dict[str, Any] = {}
    format: int = FORMAT

    @property
    def all_files(self) -> list[ShardFile | StateFile]:
        """Of shards and of machines."""
        return [*self.files, *self.states]
