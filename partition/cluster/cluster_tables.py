"""The tables of a cluster file, as msgspec decodes them, and what is wrong with a file that they do not describe.

A field is called as the attribute of `Machine`, `Rate`, `NetworkLink` or `Cluster` that it states. Its key in the file,
where that is another one, stands in `field`.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args

import msgspec
from msgspec import field

from ...errors import BadInput
from ..operators.sharding.cost_class import CLASSES
from .machines import Machine, Rate
from .quantities import Bandwidth, Duration, Fraction, Memory, Quantity, Speed

_MAX_SUGGESTIONS = 12

Name = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Table(msgspec.Struct, forbid_unknown_fields=True):
    """A table, of which every key is known."""

    def quantities(self) -> dict[str, float]:
        """The numbers that are stated, by attribute."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: float(value) for name, value in values if isinstance(value, Quantity)}


class NetworkTable(Table):
    """[network]: between any two machines, each way."""

    bandwidth: Bandwidth | None = None
    latency_s: Duration | None = field(name="latency", default=None)


class CostsTable(Table):
    """[machine.costs]"""

    operator_s: Duration | None = field(name="operator", default=None)
    gradient_s: Duration | None = field(name="gradient", default=None)
    segment_s: Duration | None = field(name="segment", default=None)
    segment_back_s: Duration | None = field(name="segment_back", default=None)
    message_s: Duration | None = field(name="message", default=None)
    step_s: Duration | None = field(name="step", default=None)
    cold: Fraction | None = None


class NetworkCardTable(Table):
    """[machine.network]"""

    bandwidth_out: Bandwidth | None = field(name="out", default=None)
    bandwidth_in: Bandwidth | None = field(name="in", default=None)
    latency_s: Duration | None = field(name="latency", default=None)


class RateTable(Table):
    """One of [machine.rates]."""

    flops_per_s: Speed = field(name="forward")
    backward_flops_per_s: Speed | None = field(name="backward", default=None)
    start_s: Duration | None = field(name="start", default=None)
    gradient_s: Duration | None = field(name="gradient", default=None)


class RateEntry:
    """What a file states of one class of operators: a `RateTable` table, or one speed for forward and backward."""

    def __init__(self, table: RateTable) -> None:
        self.table = table

    def for_machine(self, machine: Machine) -> Rate:
        """The rate; what it leaves out is as for forward, or as the machine has it for all other classes."""
        stated = self.table.quantities()
        usual = {
            "backward_flops_per_s": stated["flops_per_s"],
            "start_s": machine.operator_s,
            "gradient_s": machine.gradient_s,
        }
        return Rate(**{**usual, **stated})


RatesTable = msgspec.defstruct(
    "RatesTable", [(name, RateEntry | None, None) for name in CLASSES], bases=(Table,), forbid_unknown_fields=True
)


class MachineTable(Table):
    """[[machine]]"""

    name: Name
    flops_per_s: Speed = field(name="flops")
    memory_bytes: Memory = field(name="memory")
    memory_bandwidth: Bandwidth | None = None
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    costs: CostsTable = field(default_factory=CostsTable)
    rates: RatesTable = field(default_factory=RatesTable)  # type: ignore[valid-type]
    network: NetworkCardTable = field(default_factory=NetworkCardTable)


class LinkTable(Table):
    """[[link]]"""

    source: Name = field(name="from")
    target: Name = field(name="to")
    bandwidth: Bandwidth
    latency_s: Duration = field(name="latency")


class ClusterTables(Table):
    """The whole file."""

    network: NetworkTable = field(default_factory=NetworkTable)
    machine: list[MachineTable] = []
    link: list[LinkTable] = []


def decode_value(kind: type, value: Any) -> Any:
    """Decode a quantity or a rate: the hook of msgspec for types that are not its own. Raises ValueError."""
    if issubclass(kind, Quantity):
        return kind.parse(value)
    if not isinstance(value, dict):
        return RateEntry(RateTable(flops_per_s=Speed.parse(value)))
    try:
        return RateEntry(msgspec.convert(value, RateTable, dec_hook=decode_value))
    except msgspec.ValidationError as error:  # to a ValueError msgspec adds the path that leads here
        raise ValueError(str(error)) from error


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
    "machine": MachineTable,
    "machine.costs": CostsTable,
    "machine.rates": RatesTable,
    "machine.rates.*": RateTable,
    "machine.network": NetworkCardTable,
    "link": LinkTable,
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
    "count": "count = 2",
}
_WORDS = {"object | null": "table", "object": "table", "array": "list of tables", "str": "name", "int": "integer"}


def explain(error: msgspec.ValidationError, text: str, file: str) -> BadInput:
    """The error with its place, such as "machine[1].rates.pooling", the value that stands there, and what to write."""
    reason, *path = re.split(r" - at `\$([^`]*)`", str(error))
    place = "".join(reversed(path[::2])).removeprefix(".")
    at = f"{file}: {place}" if place else file
    if missing := re.fullmatch("Object missing required field `(.*)`", reason):
        return BadInput("E358", f"{at} has no {missing[1]}", fix=_EXAMPLES[missing[1]])
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", reason):
        table = _TABLES.get(re.sub(r"\[\d+\]", "", place), RateTable)
        known = [info.encode_name for info in msgspec.structs.fields(table)]
        at = f"{at}.{unknown[1]}" if place else f"{file}: {unknown[1]}"
        return BadInput("E357", f"{at} is not known", fix=suggest(unknown[1], known))
    key = place.rpartition(".")[2].partition("[")[0]
    value = _value_at(tomllib.loads(text), place)
    stated = "" if isinstance(value, dict | list) else f" {value!r}"
    if reason.startswith("Expected"):
        expected = re.match("Expected `([^`]*)`", reason)
        reason = f"is no {_WORDS[expected[1]]}" if expected else reason
    return BadInput("E355", f"{at}{stated} {reason}", fix=_EXAMPLES[key])


def _value_at(value: Any, place: str) -> Any:
    """What stands at a place of a file."""
    for key in re.findall(r"[^.\[\]]+", place):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def suggest(name: str, known: Sequence[str]) -> str:
    """The known name that is nearest, or some of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(known[:_MAX_SUGGESTIONS])}"
