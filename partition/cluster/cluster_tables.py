"""The tables of a cluster file, as msgspec decodes them, and what is wrong with a file that they do not describe.

A field is called as the attribute of `Machine`, `Rate`, `NetworkLink` or `Cluster` that it states. Its key in the file
is the same without the unit, unless `field` names another.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Self, TypeVar, get_args

import msgspec
from msgspec import field

from ...errors import BadInput
from ..operators.sharding.cost_class import CLASSES
from .quantities import Bandwidth, Duration, Fraction, Memory, Quantity, Slowdown, Speed

_MAX_SUGGESTIONS = 12

T = TypeVar("T")

Name = Annotated[str, msgspec.Meta(pattern=r"\S")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Address = Annotated[str, msgspec.Meta(pattern=r"^(?!-)[A-Za-z0-9_.@:%\[\]-]+\Z")]  # no option of ssh
Program = Annotated[str, msgspec.Meta(pattern=r"^[^-\x00-\x1f][^\x00-\x1f]*\Z")]


def _strip_unit(attribute: str) -> str:
    return re.sub("_(bytes|per_s|s)$", "", attribute)


class Table(msgspec.Struct, forbid_unknown_fields=True, rename=_strip_unit):
    """A table, of which every key is known."""

    def quantities(self) -> dict[str, float]:
        """The numbers that are stated, by attribute."""
        values = msgspec.structs.asdict(self)
        return {name: float(value) for name, value in values.items() if isinstance(value, Quantity)}


class InsideTable(Table):
    """[network.inside]: between any two machines of one host, each way."""

    bandwidth: Bandwidth
    latency_s: Duration


class NetworkTable(Table):
    """[network]: between any two machines, each way."""

    bandwidth: Bandwidth | None = None
    latency_s: Duration | None = None
    inside: InsideTable | None = None


class CostsTable(Table):
    """[machine.costs]"""

    operator_s: Duration | None = None
    gradient_s: Duration | None = None
    segment_s: Duration | None = None
    segment_back_s: Duration | None = None
    message_s: Duration | None = None
    step_s: Duration | None = None
    cold: Fraction | None = None


class NetworkCardTable(Table):
    """[machine.network]"""

    bandwidth_out: Bandwidth | None = field(name="out", default=None)
    bandwidth_in: Bandwidth | None = field(name="in", default=None)
    latency_s: Duration | None = None


class RateTable(Table):
    """One of [machine.rates]."""

    flops_per_s: Speed = field(name="forward")
    backward_flops_per_s: Speed | None = field(name="backward", default=None)
    start_s: Duration | None = None
    gradient_s: Duration | None = None


class StatedRate(dict[str, float]):
    """What a file states of one class of operators, by attribute of `Rate`."""

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read a `RateTable`, or one speed for forward and backward. ValueError says what is wrong, and where."""
        try:
            table = _convert(value, RateTable) if isinstance(value, dict) else RateTable(Speed.parse(value))
        except msgspec.ValidationError as error:  # to a ValueError msgspec adds the path that leads here
            raise ValueError(str(error)) from error
        return cls({"backward_flops_per_s": float(table.flops_per_s), **table.quantities()})


RatesTable = msgspec.defstruct("RatesTable", [(name, StatedRate | None, None) for name in CLASSES], bases=(Table,))


class MachineTable(Table):
    """[[machine]]"""

    name: Name
    flops_per_s: Speed
    memory_bytes: Memory
    memory_bandwidth: Bandwidth | None = None
    process_bytes: Memory | None = field(name="process_memory", default=None)
    count: Count = 1
    host: Name | None = None
    address: Address | None = None
    python: Program | None = None
    costs: CostsTable = field(default_factory=CostsTable)
    rates: RatesTable = field(default_factory=RatesTable)  # type: ignore[valid-type]
    network: NetworkCardTable = field(default_factory=NetworkCardTable)


class LinkTable(Table):
    """[[link]]"""

    source: Name = field(name="from")
    target: Name = field(name="to")
    bandwidth: Bandwidth
    latency_s: Duration


class SharedTable(Table):
    """[[shared]]"""

    machines: list[Name]
    cores: Count
    contention: Slowdown | None = None
    copies_per_s: Bandwidth | None = None
    network_per_s: Bandwidth | None = None


class ClusterTables(Table):
    """The whole file."""

    network: NetworkTable = field(default_factory=NetworkTable)
    machine: list[MachineTable] = []
    link: list[LinkTable] = []
    shared: list[SharedTable] = []


def decode_tables(data: Mapping[str, Any]) -> ClusterTables:
    """Decode what a file says. BadInput names the place that is wrong, the value and a fix, but not the file."""
    try:
        return _convert(data, ClusterTables)
    except msgspec.ValidationError as error:
        raise _explain(error, data) from error


def _convert(data: Any, kind: type[T]) -> T:
    return msgspec.convert(data, kind, dec_hook=lambda stated, value: stated.parse(value))


def quantity_fields(table: type[msgspec.Struct]) -> Iterator[tuple[str, str, type[Quantity]]]:
    """(attribute, key, quantity) of all numbers of a table."""
    for info in msgspec.structs.fields(table):
        for kind in (info.type, *get_args(info.type)):
            if isinstance(kind, type) and issubclass(kind, Quantity):
                yield info.name, info.encode_name, kind


# What is wrong with a file -----------------------------------------------------------------------------------------

_TABLES: dict[str, type[msgspec.Struct]] = {
    "": ClusterTables,
    "network": NetworkTable,
    "network.inside": InsideTable,
    "machine": MachineTable,
    "machine.costs": CostsTable,
    "machine.rates": RatesTable,
    "machine.rates.*": RateTable,
    "machine.network": NetworkCardTable,
    "link": LinkTable,
    "shared": SharedTable,
}  # by their place in the file
_EXAMPLES = {
    **{key: f'{key} = "{Speed.example}"' for key in CLASSES},
    **{
        key: f'{key} = "{quantity.example}"'
        for table in _TABLES.values()
        for _, key, quantity in quantity_fields(table)
    },
    **{key: f'{key} = "desk"' for key in ("name", "from", "to")},
    **{key: f"[{key}] with its fields below it" for key in ("network", "costs", "rates")},
    **{key: f"[[{key}]] in double brackets" for key in ("machine", "link")},
    "inside": "[network.inside] with its fields below it",
    "count": "count = 2",
    "machines": 'machines = ["desk 0", "desk 1"]',
    "cores": "cores = 2",
    "host": 'host = "left"',
    "address": 'address = "user@lab3"',
    "python": 'python = "/opt/cutset/bin/python"',
}
_WORDS = {"object": "table", "array": "list of tables", "str": "name", "int": "positive integer"}
_MESSAGE = re.compile(
    r"(?:Object (missing required|contains unknown) field `(.*?)`|(.*?))"  # keys and values may look like a path, too
    r"((?: - at `\$[^`]*`)*)",
    re.DOTALL,
)


def _explain(error: msgspec.ValidationError, data: Mapping[str, Any]) -> BadInput:
    """The error with its place, such as "machine[1].rates.pooling", the value that stands there, and what to write."""
    message = _MESSAGE.fullmatch(str(error))
    assert message is not None
    fault, key, reason, paths = message.groups()
    place = "".join(reversed(re.findall(r"`\$(.*?)`", paths))).removeprefix(".")
    if fault == "missing required":
        return BadInput("E358", f"{place} has no {key}", fix=_EXAMPLES[key])
    if fault == "contains unknown":
        known = _TABLES.get(re.sub(r"\[\d+\]", "", place), RateTable).__struct_encode_fields__
        where = f"{place}.{key}".removeprefix(".")
        return BadInput("E357", f"{where} is not known", fix=suggest(key, known))
    if expected := re.match(r"Expected `(.*?)(?: \| null)?`", reason):
        reason = f"is no {_WORDS[expected[1]]}"
    value: Any = data
    for step in re.findall(r"\w+", place):
        value = value[int(step) if isinstance(value, list) else step]
    stated = "" if isinstance(value, dict | list) else f" {value!r}"
    last_key = re.findall("[a-z_]+", place)[-1]
    return BadInput("E355", f"{place}{stated} {reason}", fix=_EXAMPLES[last_key])


def suggest(name: str, known: Sequence[str]) -> str:
    """The known name that is nearest, or some of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(known[:_MAX_SUGGESTIONS])}"
