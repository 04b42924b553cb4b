"""Reads a workload of dnn-partitioning, the JSON of "Efficient Algorithms for Device Placement of DNN Graph Operators"
(Tarnawski et al., NeurIPS 2020).

`maxFPGAs` accelerators of `maxSizePerFPGA` bytes and `maxCPUs` cores are to run `nodes`, joined by `edges`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ....errors import BadInput
from .source_line import lines_of
from .layer_graph import Layer, LayerGraph, find_cycle

LARGEST = 1e300  # so that no sum overflows
SAME_COST = 1e-6  # the benchmark's own tolerance for the costs of one layer's edges
_AGAIN = "fetch the file again"


def read_workload(text: str, file: str) -> LayerGraph:
    """The layers of a workload. Raises BadInput (E370 to E375), naming file, line and entry."""
    for _ in lines_of(text, file):
        break
    reader = _Reader(text, file)
    whole = reader.parsed()
    budget = reader.entry(whole, "", -1)
    accelerators, cpus = budget.count("maxFPGAs"), budget.count("maxCPUs")
    memory = budget.number("maxSizePerFPGA")
    if accelerators + cpus == 0:
        budget.wrong("E372", "no device: maxFPGAs and maxCPUs are 0", fix="one of them is at least 1")
    nodes = [reader.entry(node, "nodes", i) for i, node in enumerate(budget.array_of("nodes"))]
    if not nodes:
        budget.wrong("E372", "nodes is empty", fix="a graph has at least one node")
    number: dict[int, int] = {}
    for i, node in enumerate(nodes):
        identity = node.integer("id")
        if identity in number:
            node.wrong("E373", f"id {identity} is nodes[{number[identity]}] already", fix="give every node its own id")
        number[identity] = i
    costs, pairs = _edges(reader, budget, number)
    layers = tuple(_layer(node, costs.get(i, 0.0)) for i, node in enumerate(nodes))
    return LayerGraph(layers, tuple(pairs), accelerators, cpus, memory)


def _layer(node: "_Entry", output_time: float) -> Layer:
    colour = node.integer("colorClass") if node.values.get("colorClass") is not None else None
    return Layer(
        name=str(node.values["id"]),
        time=node.number("fpgaLatency"),
        cpu_time=node.number("cpuLatency"),
        output_time=output_time,
        size_bytes=node.number("size") if "size" in node.values else 0.0,
        colour=colour,
        on_accelerator=node.flag("supportedOnFpga"),
        backward=node.flag("isBackwardNode"),
    )


def _edges(
    reader: "_Reader", budget: "_Entry", number: Mapping[int, int]
) -> tuple[dict[int, float], list[tuple[int, int]]]:
    """Per producer what moving its output costs, and the edges; checked to be without a cycle."""
    costs: dict[int, float] = {}
    pairs = []
    edges = [reader.entry(edge, "edges", i) for i, edge in enumerate(budget.array_of("edges"))]
    for edge in edges:
        ends = [edge.integer("sourceId"), edge.integer("destId")]
        for end in ends:
            if end not in number:
                edge.wrong("E373", f"no node has the id {end}", fix="add the node, or remove the edge")
        source, target = (number[end] for end in ends)
        cost = edge.number("cost")
        if abs(costs.setdefault(source, cost) - cost) > SAME_COST:
            facts = f"cost {cost} out of node {ends[0]}, of which another edge says {costs[source]}"
            edge.wrong("E372", facts, fix="all edges out of one node have one cost")
        pairs.append((source, target))
    cycle = find_cycle(len(number), pairs)
    if cycle:
        ids = list(number)
        round_trip = " -> ".join(str(ids[v]) for v in cycle)
        edges[pairs.index((cycle[0], cycle[1]))].wrong(
            "E374", f"a cycle: {round_trip}", fix="remove one of these edges"
        )
    return costs, pairs


class _Reader:
    """The file's text, to parse it and to find the line of an entry that is wrong."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def parsed(self) -> Any:
        """The whole file as plain values."""
        try:
            return json.loads(self.text, parse_constant=_no_number)
        except json.JSONDecodeError as error:
            facts = f"{self.file}:{error.lineno}: no JSON at column {error.colno}: {error.msg}"
            raise BadInput("E370", facts, fix=f"{_AGAIN}: it is cut off, or no workload") from None
        except _NotFiniteError as error:
            facts = f"{self.file}:{self._line_of_word(str(error))}: {error} is no number"
            raise BadInput("E375", facts, fix="write a finite number") from None
        except (ValueError, RecursionError) as error:
            raise BadInput("E370", f"{self.file}:1: no workload: {error}", fix=_AGAIN) from None

    def _line_of_word(self, word: str) -> int:
        found = re.search(rf"[:,\[\s]{re.escape(word)}\b", self.text)
        return self.text.count("\n", 0, found.end() if found else 0) + 1

    def entry(self, values: Any, array: str, index: int) -> "_Entry":
        """An object of the file, from its `array`, or the whole where index is -1."""
        entry = _Entry(self, {}, array, index)
        if not isinstance(values, dict):
            entry.wrong("E371", f"{str(values)[:40]!r} is no object", fix=_AGAIN)
        entry.values = values
        return entry

    def line(self, array: str, index: int) -> int:
        """The line on which element `index` of an array begins."""
        key = re.search(rf'"{array}"\s*:\s*\[\s*', self.text) if array else None
        if key is None:
            return 1
        at, decoder = key.end(), json.JSONDecoder()
        for _ in range(index):
            _, end = decoder.raw_decode(self.text, at)
            comma = re.compile(r"\s*,\s*").match(self.text, end)
            at = comma.end() if comma else end
        return self.text.count("\n", 0, at) + 1


class _Entry:
    """One object of the file, whose fields are checked as they are read."""

    def __init__(self, reader: _Reader, values: dict[str, Any], array: str, index: int) -> None:
        self.reader = reader
        self.values = values
        self.array = array
        self.index = index

    def wrong(self, code: str, facts: str, *, fix: str) -> NoReturn:
        """Raise the error that names this entry."""
        place = f"{self.array}[{self.index}]: " if self.array else ""
        line = self.reader.line(self.array, self.index)
        raise BadInput(code, f"{self.reader.file}:{line}: {place}{facts}", fix=fix)

    def _field(self, name: str) -> Any:
        if name not in self.values:
            fix = (
                f'add "{name}"'
                if self.array
                else f'add "{name}"; a workload has maxFPGAs, nodes and edges, a split not'
            )
            self.wrong("E371", f"no field {name}", fix=fix)
        return self.values[name]

    def number(self, name: str) -> float:
        """A finite number of at least 0."""
        value = self._field(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong("E371", f"{name} is {str(value)[:40]!r}, no number", fix=f'"{name}": 0.0')
        if value < 0 or value > LARGEST:
            self.wrong("E375", f"{name} is {str(value)[:40]}, not from 0 to 1e300", fix=f'"{name}": 0.0')
        return float(value)

    def integer(self, name: str) -> int:
        value = self._field(name)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong("E371", f"{name} is {str(value)[:40]!r}, no integer", fix=f'"{name}": 1')
        return int(value)

    def count(self, name: str) -> int:
        """An integer of at least 0."""
        value = self.integer(name)
        if value < 0:
            self.wrong("E375", f"{name} is {value}, less than 0", fix=f'"{name}": 1')
        return value

    def flag(self, name: str) -> bool:
        value = self._field(name)
        if value not in (0, 1):
            self.wrong("E371", f"{name} is {str(value)[:40]!r}, not true or false", fix=f'"{name}": true')
        return bool(value)

    def array_of(self, name: str) -> list[Any]:
        value = self._field(name)
        if not isinstance(value, list):
            self.wrong("E371", f"{name} is no array", fix=f'"{name}": [...]')
        return list(value)


class _NotFiniteError(ValueError):
    """NaN or Infinity, which JSON does not have and Python reads."""


def _no_number(word: str) -> NoReturn:
    raise _NotFiniteError(word)
