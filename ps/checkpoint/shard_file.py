"""Reads the file of a shard: of a checkpoint, or the journal that whoever takes its place goes on from."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import CheckpointError
from .write_checkpoint import HEADER, ShardHeader
from ..slices.slice_state import Holding
from ..optimizers.registry import AnyRule, from_plain
from .streamed_safetensors import TensorReader


class ShardContents(NamedTuple):
    """The slices of a shard with values, rule state, versions and applied pushes, its rule, and its clocks.

    clocks: by slice, the steps of the replicas that train.
    """

    holdings: list[Holding]
    rule: AnyRule
    clocks: dict[int, dict[int, int]]


def read_shard(path: str | Path) -> ShardContents:
    """What a shard's file holds; CheckpointError where it is none."""
    with TensorReader(path) as reader:
        header = read_header(reader)
        holdings = [
            Holding(
                held.slice,
                reader.tensor(held.value),
                {name: reader.tensor(held.memory(name)) for name in held.state},
                held.version,
                dict(held.applied),
            )
            for held in header.held
        ]
        clocks = {held.slice.number: dict(held.clock) for held in header.held}
        return ShardContents(holdings, from_plain(header.rule), clocks)


def read_header(reader: TensorReader) -> ShardHeader:
    """What the file says about itself."""
    try:
        return msgspec.json.decode(reader.metadata[HEADER], type=ShardHeader)
    except (KeyError, msgspec.DecodeError) as error:
        raise CheckpointError("E803", f"checkpoint file {reader.path} cannot be read: {error}") from error
