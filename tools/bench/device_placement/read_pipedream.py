"""Reads a profile of PipeDream (Narayanan et al., SOSP 2019): text that its profiler writes and its optimizer reads.

A line per layer, `nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`, where activation_size may be a list `[bytes; bytes]`; and a line per edge, `<TAB>nodeA -- nodeB`.
"""

import math
import re

from .source_line import FileLine, lines_of
from .layer_graph import Layer, LayerGraph, find_cycle

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIX = "compare the line with those beside it, or profile the model again"


def read_profile(text: str, file: str, *, accelerators: int, bandwidth: float) -> LayerGraph:
    """The layers of a profile, in seconds. bandwidth: bytes/s between two machines.

    A layer's time is forward plus backward; its output time is 2 x activation / bandwidth: there, and the gradient
    back. Inputs cost nothing, as every machine has the data (so PipeDream's optimizer does). Raises BadInput (E370 to
    E375), naming file and line.
    """
    layers: dict[str, Layer] = {}
    where: dict[str, FileLine] = {}
    edges: list[tuple[str, str, FileLine]] = []
    for line in lines_of(text, file):
        if not line.text.strip():
            continue
        if line.text[0].isspace():
            source, target = _edge(line)
            edges.append((source, target, line))
            continue
        layer = _layer(line, bandwidth)
        if layer.name in layers:
            facts = f"{layer.name} is there twice, first in line {where[layer.name].number}"
            raise line.wrong("E373", facts, fix="give every layer a name of its own")
        layers[layer.name], where[layer.name] = layer, line
    return _graph(file, layers, edges, accelerators)


def _edge(line: FileLine) -> tuple[str, str]:
    ends = [end.strip() for end in line.text.split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise line.wrong("E371", f"{line.text.strip()!r} is not an edge", fix="write: <TAB>nodeA -- nodeB")
    return ends[0], ends[1]


def _layer(line: FileLine, bandwidth: float) -> Layer:
    head, _, rest = line.text.partition(" -- ")
    description, _, told = rest.rpartition(f" -- {FIELDS[0]}=")
    if not told:
        facts = f"{line.text.strip()[:60]!r} is no layer of a profile"
        fix = "write: nodeN -- description -- " + ", ".join(f"{field}=0.0" for field in FIELDS)
        raise line.wrong("E371", facts, fix=fix)
    told = f"{FIELDS[0]}={told}".partition(" -- ")[0]  # a stage may follow
    values = [_value(line, told, field) for field in FIELDS]
    forward_ms, backward_ms, activation, parameters = values
    # What "Input" layers are charged is the time to load data.
    if description.startswith("Input"):
        return Layer(head.strip(), 0.0)
    seconds = (forward_ms + backward_ms) / 1000.0
    return Layer(head.strip(), seconds, output_time=2.0 * activation / bandwidth, size_bytes=parameters)


def _value(line: FileLine, told: str, field: str) -> float:
    """A field's number; a list counts as its sum."""
    found = re.search(rf"(?:^|, ){field}=(\[[^\]]*\]|[^,]*)(?:,|$)", told)
    if found is None:
        raise line.wrong("E371", f"no {field}", fix=_FIX)
    total = 0.0
    for word in found[1].strip("[] ").split(";"):
        try:
            total += _number(word)
        except ValueError as error:
            raise line.wrong("E375", f"{field} is {word.strip() or found[1]!r}, {error}", fix=_FIX) from None
    return total


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError("which is not a number") from None
    if not math.isfinite(value) or value < 0 or value > 1e300:
        raise ValueError("which is not finite and 0 or more")
    return value


def _graph(
    file: str, layers: dict[str, Layer], edges: list[tuple[str, str, FileLine]], accelerators: int
) -> LayerGraph:
    if not layers:
        raise FileLine(file, 1, "").wrong("E371", "edges alone, no layer", fix="fetch the file again")
    number = {name: i for i, name in enumerate(layers)}
    for source, target, line in edges:
        for end in (source, target):
            if end not in number:
                raise line.wrong("E373", f"an edge with {end}, which is no layer", fix=f"add a line for {end}")
    pairs = [(number[source], number[target]) for source, target, _ in edges]
    cycle = find_cycle(len(layers), pairs)
    if cycle:
        names = list(layers)
        at = pairs.index((cycle[0], cycle[1]))
        round_trip = " -> ".join(names[v] for v in cycle)
        raise edges[at][2].wrong("E374", f"a cycle: {round_trip}", fix="remove one of these edges")
    return LayerGraph(tuple(layers.values()), tuple(pairs), accelerators)
