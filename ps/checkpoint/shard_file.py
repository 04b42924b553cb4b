"""Reads the file of a shard: its part of a checkpoint, or the journal from which a restarted shard continues."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import CheckpointError
from ..optimizers.registry import AnyOptimizer, from_plain
from ..slices.slice_state import SliceState
from .streamed_safetensors import TensorReader
from .write_checkpoint import HEADER, ShardHeader


class ShardContents(NamedTuple):
    """The slices of a shard with values, optimizer state, versions and applied pushes; its optimizer; its clocks.

    clocks: by slice and replica that trains, the steps that the replica has taken.
    """

    slice_states: list[SliceState]
    optimizer: AnyOptimizer
    clocks: dict[int, dict[int, int]]


def read_shard(path: str | Path) -> ShardContents:
    """Read a shard's file. CheckpointError E803 if it is none."""
    with TensorReader(path) as reader:
        header = read_header(reader)
        slice_states = [
            SliceState(
                one.slice,
                reader.tensor(one.value),
                {name: reader.tensor(one.state_tensor(name)) for name in one.state},
                one.version,
                dict(one.applied),
                steps=dict(one.steps),
            )
            for one in header.slices
        ]
        clocks = {one.slice.number: dict(one.clock) for one in header.slices}
        return ShardContents(slice_states, from_plain(header.optimizer), clocks)


def read_header(reader: TensorReader) -> ShardHeader:
    """Read the header of a shard's file. CheckpointError E803 if it has none."""
    try:
        return msgspec.json.decode(reader.metadata[HEADER], type=ShardHeader)
    except (KeyError, msgspec.DecodeError) as error:
        raise CheckpointError("E803", f"checkpoint file {reader.path} cannot be read: {error}") from error
