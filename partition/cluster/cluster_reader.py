"""Reads what a cluster file says, or says what is wrong with it: the place in it, the value, and what to write."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from .machines import MACHINES_MAX, Cluster, Link, Machine, Rate
from .cost_model import CLASSES
from ...errors import BadInput
from .quantities import BANDWIDTH, MEMORY, SHARE, SPEED, TIME, Quantity

PROBE = "cutset probe -o cluster.toml"
_SHOWN = 12

SIZES = {
    "flops": ("flops_per_s", SPEED),
    "memory": ("memory_bytes", MEMORY),
    "memory_bandwidth": ("memory_bandwidth", BANDWIDTH),
}
COSTS = {
    "operator": ("operator_s", TIME),
    "gradient": ("gradient_s", TIME),
    "segment": ("segment_s", TIME),
    "segment_back": ("segment_back_s", TIME),
    "message": ("message_s", TIME),
    "step": ("step_s", TIME),
    "cold": ("cold", SHARE),
}
CARD = {
    "out": ("bandwidth_out", BANDWIDTH),
    "in": ("bandwidth_in", BANDWIDTH),
    "latency": ("latency_s", TIME),
}
RATE = {
    "forward": ("flops_per_s", SPEED),
    "backward": ("back_flops_per_s", SPEED),
    "start": ("start_s", TIME),
    "gradient": ("gradient_s", TIME),
}
NETWORK = {"bandwidth": ("bandwidth", BANDWIDTH), "latency": ("latency_s", TIME)}
_MACHINE = ("name", "count", *SIZES, "costs", "rates", "network")

Fields = Mapping[str, tuple[str, Quantity]]


class Reader:
    """Reads the tables of one file. Places in it are named as "machine[1].rates.pooling", counted from 0."""

    def __init__(self, file: str) -> None:
        self.file = file

    def cluster(self, found: Mapping[str, Any]) -> Cluster:
        self._known(found, ("network", "machine", "link"), "")
        network = self._table(found.get("network", {}), "network")
        self._known(network, tuple(NETWORK), "network")
        tables = self._tables(found, "machine")
        if not tables:
            raise self._bad(
                "E352", "", "names no machine", '[[machine]] with name = "desk", flops and memory, or ' + PROBE
            )
        machines = self._machines(tables)
        needed = NETWORK if len(machines) > 1 else ()
        given = self._numbers(network, NETWORK, "network", needed=needed)
        numbers = {machine.name: i for i, machine in enumerate(machines)}
        links = tuple(self._link(t, f"link[{i}]", numbers) for i, t in enumerate(self._tables(found, "link")))
        self._distinct_links(links, machines)
        return Cluster(tuple(machines), links=links, **given)

    # Machines ----------------------------------------------------------------------------------------------------

    def _machines(self, tables: list[Mapping[str, Any]]) -> list[Machine]:
        machines: list[Machine] = []
        names: dict[str, str] = {}
        for i, table in enumerate(tables):
            at = f"machine[{i}]"
            machine, count = self._machine(table, at)
            if len(machines) + count > MACHINES_MAX:
                more = f"makes {len(machines) + count} machines; a cluster has {MACHINES_MAX} at most"
                raise self._bad("E353", f"{at}.count", more, "a smaller count")
            for k in range(count):
                name = machine.name if count == 1 else f"{machine.name} {k}"
                if name in names:
                    raise self._bad("E354", f"{at}.name", f"{name!r} is also the name of {names[name]}", "another name")
                names[name] = at
                machines.append(replace(machine, name=name))
        return machines

    def _machine(self, table: Mapping[str, Any], at: str) -> tuple[Machine, int]:
        self._known(table, _MACHINE, at)
        name = self._text(table, "name", at)
        count = table.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise self._bad("E355", f"{at}.count", f"{count!r} is no number of machines", "count = 2")
        sizes = self._numbers(
            {key: value for key, value in table.items() if key in SIZES}, SIZES, at, needed=("flops", "memory")
        )
        costs = self._numbers(self._table(table.get("costs", {}), f"{at}.costs"), COSTS, f"{at}.costs")
        card = self._numbers(self._table(table.get("network", {}), f"{at}.network"), CARD, f"{at}.network")
        memory = int(sizes.pop("memory_bytes"))
        machine = Machine(name, memory_bytes=memory, **sizes, **costs, **card)
        rates = self._table(table.get("rates", {}), f"{at}.rates")
        self._known(rates, CLASSES, f"{at}.rates")
        return replace(machine, rates={k: self._rate(v, machine, f"{at}.rates.{k}") for k, v in rates.items()}), count

    def _rate(self, value: Any, machine: Machine, at: str) -> Rate:
        if not isinstance(value, dict):
            speed = self._number(value, SPEED, at)
            return Rate(speed, speed, machine.operator_s, machine.gradient_s)
        given = self._numbers(value, RATE, at, needed=("forward",))
        usual = {"start_s": machine.operator_s, "gradient_s": machine.gradient_s}
        return Rate(**{"back_flops_per_s": given["flops_per_s"], **usual, **given})

    # Links -------------------------------------------------------------------------------------------------------

    def _link(self, table: Mapping[str, Any], at: str, numbers: Mapping[str, int]) -> Link:
        self._known(table, ("from", "to", *NETWORK), at)
        source, target = (self._end(table, key, at, numbers) for key in ("from", "to"))
        if source == target:
            raise self._bad("E356", f"{at}.to", f"{table['to']!r} is where the link comes from", "another machine")
        numbers_only = {key: value for key, value in table.items() if key in NETWORK}
        return Link(source, target, **self._numbers(numbers_only, NETWORK, at, needed=NETWORK))

    def _end(self, table: Mapping[str, Any], key: str, at: str, numbers: Mapping[str, int]) -> int:
        name = self._text(table, key, at)
        if name not in numbers:
            raise self._bad("E356", f"{at}.{key}", f"{name!r} is no machine", _meant(name, numbers))
        return numbers[name]

    def _distinct_links(self, links: tuple[Link, ...], machines: list[Machine]) -> None:
        seen: dict[tuple[int, int], int] = {}
        for i, link in enumerate(links):
            before = seen.setdefault((link.source, link.target), i)
            if before != i:
                ends = f"{machines[link.source].name!r} to {machines[link.target].name!r}"
                raise self._bad("E354", f"link[{i}]", f"from {ends} is also link[{before}]", "leave one of them out")

    # Values ------------------------------------------------------------------------------------------------------

    def _numbers(
        self, table: Mapping[str, Any], fields: Fields, at: str, *, needed: Collection[str] = ()
    ) -> dict[str, Any]:
        self._known(table, tuple(fields), at)
        for key in needed:
            if key not in table:
                raise self._missing(key, at, f"{key} = {_quoted(fields[key][1].example)}")
        found = {}
        for key, value in table.items():
            field, quantity = fields[key]
            found[field] = self._number(value, quantity, f"{at}.{key}")
        return found

    def _number(self, value: Any, quantity: Quantity, at: str) -> float:
        try:
            return quantity.read(value)
        except ValueError as error:
            key = at.rpartition(".")[2]
            raise self._bad("E355", at, f"{value!r} {error}", f"{key} = {_quoted(quantity.example)}") from error

    def _text(self, table: Mapping[str, Any], key: str, at: str) -> str:
        if key not in table:
            raise self._missing(key, at, f'{key} = "desk"')
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            raise self._bad("E355", f"{at}.{key}", f"{value!r} is no name", f'{key} = "desk"')
        return value

    def _tables(self, found: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        tables = found.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._bad("E355", key, "is not a list of tables", f"[[{key}]] in double brackets")
        return tables

    def _table(self, value: Any, at: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._bad("E355", at, f"{value!r} is no table", f"[{at.rpartition('.')[2]}] with its fields below it")
        return value

    def _known(self, table: Mapping[str, Any], known: Collection[str], at: str) -> None:
        for key in table:
            if key not in known:
                place = f"{at}.{key}" if at else key
                raise self._bad("E357", place, "is not known", _meant(key, known))

    def _missing(self, key: str, at: str, fix: str) -> BadInput:
        return self._bad("E358", at, f"has no {key}", fix)

    def _bad(self, code: str, at: str, facts: str, fix: str) -> BadInput:
        place = f"{self.file}: {at}" if at else self.file
        return BadInput(code, f"{place} {facts}", fix=fix)


def _meant(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(list(known)[:_SHOWN])}"


def _quoted(text: str) -> str:
    return f'"{text}"'
