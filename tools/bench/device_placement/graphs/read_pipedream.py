"""Reads a profile of PipeDream (Narayanan et al., SOSP 2019): text that its profiler writes and its optimizer reads.

A line per layer, `nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`, where activation_size may be a list `[bytes; bytes]`; and a line per edge, `<TAB>nodeA -- nodeB`.
"""

import math
import re

from .layer_graph import Layer, LayerGraph, find_cycle
from .source_line import SourceLine, read_lines

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIX = "compare the line with those beside it, or profile the model again"


def read_profile(text: str, file: str, *, accelerators: int, bandwidth: float) -> LayerGraph:
    """Return the layers of a profile, in seconds. bandwidth: bytes/s between two machines.

    A layer's time is forward plus backward; its output time is 2 x activation / bandwidth: there, and the gradient
    back. Inputs cost nothing, as every machine has the data (so PipeDream's optimizer does). Raises BadInput (E370 to
    E375), naming file and line.
    """
    layers: dict[str, Layer] = {}
    where: dict[str, SourceLine] = {}
    edges: list[tuple[str, str, SourceLine]] = []
    for line in read_lines(text, file):
        if not line.text.strip():
            continue
        if line.text[0].isspace():
            source, target = _parse_edge(line)
            edges.append((source, target, line))
            continue
        layer = _parse_layer(line, bandwidth)
        if layer.name in layers:
            facts = f"{layer.name} is there twice, first in line {where[layer.name].number}"
            raise line.make_error("E373", facts, fix="give every layer a name of its own")
        layers[layer.name], where[layer.name] = layer, line
    return _assemble(file, layers, edges, accelerators)


def _parse_edge(line: SourceLine) -> tuple[str, str]:
    ends = [end.strip() for end in line.text.split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise line.make_error("E371", f"{line.text.strip()!r} is not an edge", fix="write: <TAB>nodeA -- nodeB")
    return ends[0], ends[1]


def _parse_layer(line: SourceLine, bandwidth: float) -> Layer:
    head, _, rest = line.text.partition(" -- ")
    description, _, fields_text = rest.rpartition(f" -- {FIELDS[0]}=")
    if not fields_text:
        facts = f"{line.text.strip()[:60]!r} is no layer of a profile"
        fix = "write: nodeN -- description -- " + ", ".join(f"{field}=0.0" for field in FIELDS)
        raise line.make_error("E371", facts, fix=fix)
    fields_text = f"{FIELDS[0]}={fields_text}".partition(" -- ")[0]  # a stage may follow
    values = [_parse_value(line, fields_text, field) for field in FIELDS]
    forward_ms, backward_ms, activation, parameters = values
    # What "Input" layers are charged is the time to load data.
    if description.startswith("Input"):
        return Layer(head.strip(), 0.0)
    seconds = (forward_ms + backward_ms) / 1000.0
    moving, syncing = 2.0 * activation / bandwidth, 4.0 * parameters / bandwidth
    return Layer(head.strip(), seconds, output_time=moving, size_bytes=parameters, sync_time=syncing)


def _parse_value(line: SourceLine, fields_text: str, field: str) -> float:
    """Return a field's number; a list counts as its sum."""
    match = re.search(rf"(?:^|, ){field}=(\[[^\]]*\]|[^,]*)(?:,|$)", fields_text)
    if match is None:
        raise line.make_error("E371", f"no {field}", fix=_FIX)
    total = 0.0
    for word in match[1].strip("[] ").split(";"):
        try:
            total += _parse_number(word)
        except ValueError as error:
            raise line.make_error("E375", f"{field} is {word.strip() or match[1]!r}, {error}", fix=_FIX) from None
    return total


def _parse_number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError("which is not a number") from None
    if not math.isfinite(value) or value < 0 or value > 1e300:
        raise ValueError("which is not finite and 0 or more")
    return value


def _assemble(
    file: str, layers: dict[str, Layer], edges: list[tuple[str, str, SourceLine]], accelerators: int
) -> LayerGraph:
    if not layers:
        raise SourceLine(file, 1, "").make_error("E371", "edges alone, no layer", fix="fetch the file again")
    number = {name: i for i, name in enumerate(layers)}
    for source, target, line in edges:
        for end in (source, target):
            if end not in number:
                raise line.make_error("E373", f"an edge with {end}, which is no layer", fix=f"add a line for {end}")
    pairs = [(number[source], number[target]) for source, target, _ in edges]
    cycle = find_cycle(len(layers), pairs)
    if cycle:
        names = list(layers)
        at = pairs.index((cycle[0], cycle[1]))
        round_trip = " -> ".join(names[v] for v in cycle)
        raise edges[at][2].make_error("E374", f"a cycle: {round_trip}", fix="remove one of these edges")
    return LayerGraph(tuple(layers.values()), tuple(pairs), accelerators)
