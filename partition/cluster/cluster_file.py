"""`cluster.toml`: the machines to plan for, as a file. `cutset probe` writes one; a person may, too.

    [network]                         # between any two machines, each way
    bandwidth = "1 Gbit/s"
    latency = "0.2 ms"

    [[machine]]
    name = "desk"
    count = 2                         # so many alike: "desk 0", "desk 1"; 1 if left out
    flops = "50 GFLOP/s"              # of large matrix products
    memory = "16 GB"
    memory_bandwidth = "10 GB/s"      # this and all below may be left out

    [machine.costs]                   # what things cost however small they are
    operator = "25 us"                # a box of an operator forward, and
    gradient = "10 us"                # each gradient that it gives
    segment = "20 us"
    segment_back = "25 us"
    message = "80 us"                 # at either end
    step = "60 us"
    cold = 0.5                        # starts take so much longer where a step waits for other machines

    [machine.rates]                   # of classes of operators that run otherwise: FLOP/s, or all there is to say
    pooling = "1 GFLOP/s"
    convolution = { forward = "60 GFLOP/s", backward = "40 GFLOP/s", start = "50 us", gradient = "20 us" }

    [machine.network]                 # its own card
    out = "100 Mbit/s"
    in = "1 Gbit/s"
    latency = "5 ms"

    [[link]]                          # from one machine to another, this way only
    from = "desk 0"
    to = "desk 1"
    bandwidth = "10 Gbit/s"
    latency = "50 us"

Numbers without a unit are bytes, bytes/s, seconds and FLOP/s. What is left out is as in `Machine`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from ...errors import BadInput
from .cluster_tables import (
    ClusterTables,
    CostsTable,
    LinkTable,
    MachineTable,
    NetworkCardTable,
    NetworkTable,
    RateEntry,
    RateTable,
    Table,
    decode_value,
    explain,
    quantity_fields,
    suggest,
)
from .machines import MAX_MACHINES, Cluster, Machine, NetworkLink

PROBE = "cutset probe -o cluster.toml"


def load(path: str | Path) -> Cluster:
    """Read a cluster file. BadInput names what is wrong in it, where, and what to write instead."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput("E350", f"cannot read the cluster {path}: {error.strerror}", fix=PROBE) from error
    except UnicodeDecodeError as error:
        facts = f"the cluster {path} is not text: {error.reason} at byte {error.start}"
        raise BadInput("E351", facts, fix=PROBE) from error
    return read(text, name=str(path))


def read(text: str, *, name: str = "cluster.toml") -> Cluster:
    """The cluster that a text describes. name: the file's, for error messages. Raises BadInput as `load`."""
    try:
        tables = msgspec.toml.decode(text, type=ClusterTables, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        raise explain(error, text, name) from error
    except (ValueError, RecursionError) as error:  # errors of TOML are ValueErrors, too
        facts = f"the cluster {name} is not TOML: {error}"
        raise BadInput("E351", facts, fix=f"correct it there, or {PROBE}") from error
    return _Builder(name).cluster(tables)


class _Builder:
    """Makes the cluster of the tables of one file; BadInput where they contradict each other."""

    def __init__(self, file: str) -> None:
        self.file = file

    def cluster(self, tables: ClusterTables) -> Cluster:
        if not tables.machine:
            fix = f'[[machine]] with name = "desk", flops and memory, or {PROBE}'
            raise self._error("E352", "", "names no machine", fix)
        machines = self._machines(tables.machine)
        network = tables.network.quantities()
        for attribute, key, quantity in quantity_fields(NetworkTable):
            if len(machines) > 1 and attribute not in network:
                raise self._error("E358", "network", f"has no {key}", f'{key} = "{quantity.example}"')
        numbers = {machine.name: number for number, machine in enumerate(machines)}
        links: dict[tuple[int, int], NetworkLink] = {}
        for i, table in enumerate(tables.link):
            link = self._link(table, f"link[{i}]", numbers)
            if (link.source, link.target) in links:
                before = list(links).index((link.source, link.target))
                facts = f"from {table.source!r} to {table.target!r} is also link[{before}]"
                raise self._error("E354", f"link[{i}]", facts, "leave one of them out")
            links[link.source, link.target] = link
        return Cluster(tuple(machines), links=tuple(links.values()), **network)

    def _machines(self, tables: Sequence[MachineTable]) -> list[Machine]:
        machines: list[Machine] = []
        places: dict[str, str] = {}  # of the machines' names
        for i, table in enumerate(tables):
            place, total = f"machine[{i}]", len(machines) + table.count
            if total > MAX_MACHINES:
                facts = f"makes {total} machines; a cluster has {MAX_MACHINES} at most"
                raise self._error("E353", f"{place}.count", facts, "a smaller count")
            machine = _machine_of(table)
            for k in range(table.count):
                name = table.name if table.count == 1 else f"{table.name} {k}"
                if name in places:
                    facts = f"{name!r} is also the name of {places[name]}"
                    raise self._error("E354", f"{place}.name", facts, "another name")
                places[name] = place
                machines.append(replace(machine, name=name))
        return machines

    def _link(self, table: LinkTable, place: str, numbers: Mapping[str, int]) -> NetworkLink:
        for key, name in (("from", table.source), ("to", table.target)):
            if name not in numbers:
                raise self._error("E356", f"{place}.{key}", f"{name!r} is no machine", suggest(name, list(numbers)))
        if table.source == table.target:
            facts = f"{table.target!r} is where the link comes from"
            raise self._error("E356", f"{place}.to", facts, "another machine")
        return NetworkLink(numbers[table.source], numbers[table.target], **table.quantities())

    def _error(self, code: str, place: str, facts: str, fix: str) -> BadInput:
        return BadInput(code, f"{self.file}: {place} {facts}" if place else f"{self.file} {facts}", fix=fix)


def _machine_of(table: MachineTable) -> Machine:
    numbers: dict[str, Any] = {**table.quantities(), **table.costs.quantities(), **table.network.quantities()}
    machine = Machine(table.name, memory_bytes=int(numbers.pop("memory_bytes")), **numbers)
    entries = cast("dict[str, RateEntry | None]", msgspec.structs.asdict(table.rates))
    return replace(machine, rates={k: entry.for_machine(machine) for k, entry in entries.items() if entry is not None})


# Writing -----------------------------------------------------------------------------------------------------------


def save(cluster: Cluster, path: str | Path, *, note: str = "") -> None:
    """Write a cluster file that `load` reads back as the same cluster. note: a comment for its head."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(to_toml(cluster, note=note), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise BadInput(
            "E359", f"cannot write the cluster to {path}: {error.strerror}", fix="-o cluster.toml"
        ) from error


def to_toml(cluster: Cluster, *, note: str = "") -> str:
    """The text of a cluster file. Machines that differ in nothing but the number in their name are one entry."""
    lines = [f"# {line}".rstrip() for line in note.splitlines()]
    lines += ["", "[network]", *_field_lines(cluster, NetworkTable)]
    for group in _group_machines(cluster.machines):
        lines += ["", *_machine_lines(*group)]
    names = [machine.name for machine in cluster.machines]
    for link in cluster.links:
        ends = [f"from = {_quote(names[link.source])}", f"to = {_quote(names[link.target])}"]
        lines += ["", "[[link]]", *ends, *_field_lines(link, LinkTable)]
    return "\n".join(lines).strip() + "\n"


def _group_machines(machines: Sequence[Machine]) -> list[tuple[str, int, Machine]]:
    """(name, count, machine) of each entry."""
    groups: list[tuple[str, int, Machine]] = []
    for machine in machines:
        stem, _, number = machine.name.rpartition(" ")
        last, count, like = groups[-1] if groups else ("", 0, machine)
        goes_on = stem == last and number == str(count) and replace(machine, name="") == replace(like, name="")
        if goes_on and stem:
            groups[-1] = (stem, count + 1, machine)
        elif stem and number == "0":
            groups.append((stem, 1, machine))
        else:
            groups.append((machine.name, 0, machine))
    return [(m.name, 1, m) if count <= 1 else (name, count, m) for name, count, m in groups]


def _machine_lines(name: str, count: int, machine: Machine) -> list[str]:
    lines = ["[[machine]]", f"name = {_quote(name)}"]
    lines += [f"count = {count}"] if count > 1 else []
    lines += _field_lines(machine, MachineTable)
    lines += ["", "[machine.costs]", *_field_lines(machine, CostsTable)]
    if machine.rates:
        rates = [f"{kind} = {{ {', '.join(_field_lines(rate, RateTable))} }}" for kind, rate in machine.rates.items()]
        lines += ["", "[machine.rates]", *rates]
    card = _field_lines(machine, NetworkCardTable)
    return [*lines, "", "[machine.network]", *card] if card else lines


def _field_lines(value: object, table: type[Table]) -> list[str]:
    """A line for each quantity of a table that a value has."""
    lines = []
    for attribute, key, quantity in quantity_fields(table):
        number = getattr(value, attribute)
        if number is not None:
            stated = quantity.format(number)
            lines.append(f"{key} = {_quote(stated) if isinstance(stated, str) else repr(stated)}")
    return lines


def _quote(text: str) -> str:
    """A TOML basic string: JSON's escapes are among its own, but for DEL, which must not stand there bare."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
