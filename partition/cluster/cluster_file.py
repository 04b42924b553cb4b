"""`cluster.toml`: the machines to plan for, as a file. `cutset probe` writes one; a person may, too.

    [network]                         # between any two machines, each way; each has a card, or shares that of its host
    bandwidth = "1 Gbit/s"
    latency = "0.2 ms"

    [network.inside]                  # between machines of one host, each pair and way; only where machines have hosts
    bandwidth = "20 Gbit/s"
    latency = "40 us"

    [[machine]]
    name = "desk"
    count = 2                         # so many alike: "desk 0", "desk 1"; 1 if left out
    host = "left"                     # on which they are, as processes or GPUs, sharing its card; may be left out
    flops = "50 GFLOP/s"              # of large matrix products
    memory = "16 GB"
    memory_bandwidth = "10 GB/s"      # this and all below may be left out
    process_memory = "250 MB"         # which a process takes before it has a part of a model

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

    [machine.network]                 # its own card, on a host too
    out = "100 Mbit/s"
    in = "1 Gbit/s"
    latency = "5 ms"

    [[machine]]
    name = "shelf"
    flops = "20 GFLOP/s"
    memory = "8 GB"
    address = "user@lab3"             # where ssh finds it; of one machine, so it has no count
    python = "/opt/cutset/bin/python" # which has cutset there; if left out, at the same path as here

    [[link]]                          # from one machine to another, this way only, on one host or not
    from = "desk 0"
    to = "desk 1"
    bandwidth = "10 Gbit/s"
    latency = "50 us"

    [[shared]]                        # machines that are processes of one host and share its cores
    machines = ["desk 0", "desk 1"]
    cores = 2                         # how many of them can compute at once, each at its full speed
    contention = 1.3                  # so many times as long where all cores are busy; 1 if left out
    copies = "4 GB/s"                 # how fast they copy what they send each other; if left out, it travels
    network = "500 MB/s"              # how fast a core encrypts and sends what travels, or receives and decrypts it

Numbers without a unit are bytes, bytes/s, seconds and FLOP/s. What is left out is as in `Machine`.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, takewhile
from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadInput
from ...whole_file import write_whole
from .cluster_tables import (
    ClusterTables,
    CostsTable,
    InsideTable,
    LinkTable,
    MachineTable,
    NetworkCardTable,
    NetworkTable,
    RateTable,
    SharedTable,
    Table,
    decode_tables,
    quantity_fields,
    suggest,
)
from .machines import MAX_MACHINES, Cluster, Machine, NetworkLink, SharedCard, SharedCores
from .quantities import Bandwidth, Duration

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
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # errors of TOML are ValueErrors, too
        facts = f"the cluster {name} is not TOML: {error}"
        raise BadInput("E351", facts, fix=f"correct it there, or {PROBE}") from error
    try:
        return _make_cluster(decode_tables(data))
    except BadInput as error:
        raise BadInput(error.code, f"{name}: {error.facts}", fix=error.fix) from error


def _make_cluster(tables: ClusterTables) -> Cluster:
    """The cluster of the tables of one file; BadInput where they contradict each other."""
    machines = _make_machines(tables.machine)
    network = tables.network.quantities()
    for attribute, key, quantity in quantity_fields(NetworkTable):
        if len(machines) > 1 and attribute not in network:
            raise BadInput("E358", f"network has no {key}", fix=f'{key} = "{quantity.example}"')
    links = {(link.source, link.target): link for link in _make_host_links(tables)}
    links |= {(link.source, link.target): link for link in _make_links(tables.link, [m.name for m in machines])}
    shared = tuple(_make_shared(tables.shared, [m.name for m in machines]))
    cards = tuple(_make_host_cards(tables))
    return Cluster(tuple(machines), links=tuple(links.values()), shared=shared, cards=cards, **network)


def _make_machines(tables: Sequence[MachineTable]) -> list[Machine]:
    if not tables:
        fix = f'[[machine]] with name = "desk", flops and memory, or {PROBE}'
        raise BadInput("E352", "the cluster names no machine", fix=fix)
    machines: list[Machine] = []
    places: dict[str, int] = {}  # of the machines' names
    for i, table in enumerate(tables):
        total = len(machines) + table.count
        if total > MAX_MACHINES:
            facts = f"machine[{i}].count makes {total} machines; a cluster has {MAX_MACHINES} at most"
            raise BadInput("E353", facts, fix="a smaller count")
        if table.address and table.count > 1:
            facts = f"machine[{i}].address is that of one machine, and count is {table.count}"
            raise BadInput("E355", facts, fix="a [[machine]] for each, with its own name and address")
        machine = _make_machine(table)
        for k in range(table.count):
            name = table.name if table.count == 1 else f"{table.name} {k}"
            if name in places:
                facts = f"machine[{i}].name {name!r} is also the name of machine[{places[name]}]"
                raise BadInput("E354", facts, fix="another name")
            places[name] = i
            machines.append(replace(machine, name=name))
    return machines


def _make_machine(table: MachineTable) -> Machine:
    stated: dict[str, Any] = {**table.quantities(), **table.costs.quantities(), **table.network.quantities()}
    for size in ("memory_bytes", "process_bytes"):
        if size in stated:
            stated[size] = int(stated[size])
    machine = Machine(table.name, **stated)
    machine = replace(machine, address=table.address or "", python=table.python or "")
    rates = msgspec.structs.asdict(table.rates)
    return replace(machine, rates={kind: replace(machine.rate(kind), **rate) for kind, rate in rates.items() if rate})


def _make_host_links(tables: ClusterTables) -> Iterator[NetworkLink]:
    """Yield a link for each pair of machines of one host, each way."""
    hosts = [table.host for table in tables.machine for _ in range(table.count)]
    inside, named = tables.network.inside, [host for host in hosts if host is not None]
    if inside is None:
        if named:
            fix = f'[network.inside] with bandwidth = "{Bandwidth.example}" and latency = "{Duration.example}"'
            raise BadInput("E358", f"machines have hosts, as {named[0]!r}, and network has no inside", fix=fix)
        return
    if not named:
        fix = 'host = "left" below each [[machine]] that is on one'
        raise BadInput("E358", "network has an inside, and no machine has a host", fix=fix)
    for source, target in permutations(range(len(hosts)), 2):
        if hosts[source] is not None and hosts[source] == hosts[target]:
            yield NetworkLink(source, target, **inside.quantities())


def _make_host_cards(tables: ClusterTables) -> Iterator[SharedCard]:
    """Yield the card of each host that has several machines without one of their own."""
    on = dict[str, list[int]]()
    each = [table for table in tables.machine for _ in range(table.count)]
    for number, table in enumerate(each):
        has_own = table.network.bandwidth_out is not None or table.network.bandwidth_in is not None
        if table.host is not None and not has_own:
            on.setdefault(table.host, []).append(number)
    return (SharedCard(host, tuple(numbers)) for host, numbers in on.items() if len(numbers) > 1)


def _make_links(tables: Sequence[LinkTable], names: Sequence[str]) -> Iterator[NetworkLink]:
    numbers = {name: number for number, name in enumerate(names)}
    places: dict[tuple[str, str], int] = {}  # of the pairs that have a link
    for i, table in enumerate(tables):
        for key, name in (("from", table.source), ("to", table.target)):
            if name not in numbers:
                raise BadInput("E356", f"link[{i}].{key} {name!r} is no machine", fix=suggest(name, names))
        if table.source == table.target:
            facts = f"link[{i}].to {table.target!r} is where the link comes from"
            raise BadInput("E356", facts, fix="another machine")
        before = places.setdefault((table.source, table.target), i)
        if before != i:
            facts = f"link[{i}] from {table.source!r} to {table.target!r} is also link[{before}]"
            raise BadInput("E354", facts, fix="leave one of them out")
        yield NetworkLink(numbers[table.source], numbers[table.target], **table.quantities())


def _make_shared(tables: Sequence[SharedTable], names: Sequence[str]) -> Iterator[SharedCores]:
    numbers = {name: number for number, name in enumerate(names)}
    places: dict[str, int] = {}  # of the machines that share cores
    for i, table in enumerate(tables):
        for name in table.machines:
            if name not in numbers:
                raise BadInput("E356", f"shared[{i}].machines {name!r} is no machine", fix=suggest(name, names))
            if name in places:
                facts = f"shared[{i}].machines {name!r} is also in shared[{places[name]}]"
                raise BadInput("E354", facts, fix="leave one of them out")
            places[name] = i
        yield SharedCores(tuple(numbers[name] for name in table.machines), table.cores, **table.quantities())


# Writing -----------------------------------------------------------------------------------------------------------


def save(cluster: Cluster, path: str | Path, *, note: str = "") -> None:
    """Write a cluster file that `load` reads back as the same cluster, but for the order of its links.

    note: a comment for its head.
    """
    try:
        write_whole(Path(path), to_toml(cluster, note=note))
    except OSError as error:
        raise BadInput(
            "E359", f"cannot write the cluster to {path}: {error.strerror}", fix="-o cluster.toml"
        ) from error


def to_toml(cluster: Cluster, *, note: str = "") -> str:
    """The text of a cluster file. Machines that differ in nothing but the number in their name are one entry."""
    lines = [f"# {line}".rstrip() for line in note.splitlines()]
    lines += ["", "[network]", *_field_lines(cluster, NetworkTable)]
    inside = _find_inside(cluster)
    if inside is not None:
        lines += ["", "[network.inside]", *_field_lines(inside, InsideTable)]
    for group in _group_machines(cluster):
        lines += ["", *_machine_lines(*group)]
    names = [machine.name for machine in cluster.machines]
    for link in cluster.links:
        if inside is not None and cluster.is_inside(link) and _is_alike(link, inside):
            continue
        ends = [f"from = {_quote(names[link.source])}", f"to = {_quote(names[link.target])}"]
        lines += ["", "[[link]]", *ends, *_field_lines(link, LinkTable)]
    for cores in cluster.shared:
        machines = ", ".join(_quote(names[number]) for number in cores.machines)
        lines += ["", "[[shared]]", f"machines = [{machines}]", f"cores = {cores.cores}"]
        lines += _field_lines(cores, SharedTable)
    return "\n".join(lines).strip() + "\n"


def _find_inside(cluster: Cluster) -> NetworkLink | None:
    """Return a link as most between machines that share a card are; None where none are."""
    links = list(filter(cluster.is_inside, cluster.links))
    speeds = Counter((link.bandwidth, link.latency_s) for link in links).most_common(1)
    return next((link for link in links if (link.bandwidth, link.latency_s) == speeds[0][0]), None)


def _is_alike(link: NetworkLink, other: NetworkLink) -> bool:
    return (link.bandwidth, link.latency_s) == (other.bandwidth, other.latency_s)


def _group_machines(cluster: Cluster) -> Iterator[tuple[str, int, Machine, SharedCard | None]]:
    """Yield (name, count, machine, card that it shares) of each entry."""
    rest = [(machine, cluster.shared_card(number)) for number, machine in enumerate(cluster.machines)]
    while rest:
        first, card = rest[0]
        stem = first.name.removesuffix(" 0")
        numbered = ((replace(first, name=f"{stem} {k}"), card) for k in range(len(rest)))
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rest, numbered, strict=True)))
        count = alike if stem.strip() and alike > 1 and not first.address else 1
        yield stem if count > 1 else first.name, count, first, card
        del rest[:count]


def _machine_lines(name: str, count: int, machine: Machine, card: SharedCard | None) -> list[str]:
    lines = ["[[machine]]", f"name = {_quote(name)}"]
    lines += [f"count = {count}"] if count > 1 else []
    lines += [] if card is None else [f"host = {_quote(card.name)}"]
    lines += _field_lines(machine, MachineTable)
    texts = {"address": machine.address, "python": machine.python}
    lines += [f"{key} = {_quote(text)}" for key, text in texts.items() if text]
    lines += ["", "[machine.costs]", *_field_lines(machine, CostsTable)]
    if machine.rates:
        rates = [f"{kind} = {{ {', '.join(_field_lines(rate, RateTable))} }}" for kind, rate in machine.rates.items()]
        lines += ["", "[machine.rates]", *rates]
    own = _field_lines(machine, NetworkCardTable)
    return [*lines, "", "[machine.network]", *own] if own else lines


def _field_lines(value: object, table: type[Table]) -> list[str]:
    """A line for each quantity of a table that a value has."""
    lines = []
    for attribute, key, quantity in quantity_fields(table):
        number = getattr(value, attribute)
        if number is not None and not (attribute == "process_bytes" and not number):
            stated = quantity.format(number)
            lines.append(f"{key} = {_quote(stated) if isinstance(stated, str) else repr(stated)}")
    return lines


def _quote(text: str) -> str:
    """A TOML basic string: JSON's escapes are among its own, but for DEL, which must not stand there bare."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
