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
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .machines import Cluster, Machine
from .cluster_reader import CARD, COSTS, NETWORK, PROBE, RATE, SIZES, Fields, Reader
from ...errors import BadInput


def load(path: str | Path) -> Cluster:
    """Read a cluster file; BadInput names what is wrong in it, where, and what to write instead."""
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
    """The cluster that a text describes. name: of the file, for what is wrong in it."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own error is a ValueError, too
        facts = f"the cluster {name} is not TOML: {error}"
        raise BadInput("E351", facts, fix=f"correct it there, or {PROBE}") from error
    return Reader(name).cluster(found)


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
    lines += ["", "[network]", *_fields(cluster, NETWORK)]
    for group in _groups(cluster.machines):
        lines += ["", *_machine_lines(*group)]
    names = [machine.name for machine in cluster.machines]
    for link in cluster.links:
        ends = [f"from = {_string(names[link.source])}", f"to = {_string(names[link.target])}"]
        lines += ["", "[[link]]", *ends, *_fields(link, NETWORK)]
    return "\n".join(lines).strip() + "\n"


def _groups(machines: Sequence[Machine]) -> list[tuple[str, int, Machine]]:
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
    lines = ["[[machine]]", f"name = {_string(name)}"]
    lines += [f"count = {count}"] if count > 1 else []
    lines += _fields(machine, SIZES)
    lines += ["", "[machine.costs]", *_fields(machine, COSTS)]
    if machine.rates:
        rates = [f"{kind} = {{ {', '.join(_fields(rate, RATE))} }}" for kind, rate in machine.rates.items()]
        lines += ["", "[machine.rates]", *rates]
    card = _fields(machine, CARD)
    return [*lines, "", "[machine.network]", *card] if card else lines


def _fields(value: object, fields: Fields) -> list[str]:
    lines = []
    for key, (name, quantity) in fields.items():
        number = getattr(value, name)
        if number is not None:
            written = quantity.write(number)
            lines.append(f"{key} = {_string(written) if isinstance(written, str) else repr(written)}")
    return lines


def _string(text: str) -> str:
    """A TOML basic string: JSON's escapes are among its own, but for DEL, which must not stand there bare."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
