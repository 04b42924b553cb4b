"""Reads a graph file of METIS (manual of METIS 5, section 4.1.1).

The first line is `vertices edges [fmt [ncon]]`, where fmt says whether vertices have sizes (100), vertices have weights
(10) and edges have weights (1). Then a line per vertex: [size] [ncon weights] neighbour [weight] neighbour [weight] ...
Lines that begin with % are comments; an empty line is a vertex without neighbours.
"""

from dataclasses import dataclass

from .hypergraph import Hypergraph
from .source_line import MAX_VALUE, SourceLine, read_lines


@dataclass(frozen=True)
class _Header:
    """The first line. constraints: weights per vertex, 0 if none are written."""

    line: SourceLine
    vertices: int
    edges: int
    has_sizes: bool
    constraints: int
    has_edge_weights: bool


def read_metis(text: str, file: str) -> Hypergraph:
    """Return the graph in a METIS file. Raises BadInput (E370 to E376), naming file and line."""
    lines = list(read_lines(text, file, comment="%"))
    while lines and not lines[0].text.strip():
        lines.pop(0)
    if not lines:
        raise SourceLine(file, 1, "").make_error("E370", "only comments, no graph", fix="fetch the file again")
    header = _parse_header(lines[0])
    body = lines[1:]
    while len(body) > header.vertices and not body[-1].text.strip():
        body.pop()
    if len(body) != header.vertices:
        facts = f"{header.vertices} vertices are announced and {len(body)} lines follow"
        raise header.line.make_error("E372", facts, fix="fetch the file again: it is cut off, or line 1 is wrong")
    weights, sizes, adjacency = [], [], []
    for vertex, line in enumerate(body):
        size, weight, near = _parse_vertex(line, header, vertex)
        weights.append(weight)
        sizes.append(size)
        adjacency.append(near)
    return _assemble(header, body, weights, sizes, adjacency)


def _parse_header(line: SourceLine) -> _Header:
    fields = line.text.split()
    if not 2 <= len(fields) <= 4:
        raise line.make_error("E371", f"a header of {len(fields)} fields", fix="write: vertices edges [fmt [ncon]]")
    counts = SourceLine(line.file, line.number, " ".join([*fields[:2], *fields[3:]])).integers(minimum=0, what="counts")
    code = fields[2].zfill(3) if len(fields) > 2 else "000"
    if len(code) != 3 or set(code) - {"0", "1"}:
        raise line.make_error("E371", f"no format {fields[2]!r}", fix="one of 0, 1, 10, 11, 100, 101, 110, 111")
    has_weights = code[1] == "1"
    if len(fields) == 4 and (not has_weights or counts[2] < 1):
        facts = f"ncon {counts[2]} with format {fields[2]}"
        raise line.make_error(
            "E371", facts, fix="ncon is 1 or more, and needs a format with vertex weights: 10, 11, 110, 111"
        )
    constraints = counts[2] if len(fields) == 4 else int(has_weights)
    return _Header(line, counts[0], counts[1], code[0] == "1", constraints, code[2] == "1")


def _parse_vertex(line: SourceLine, header: _Header, vertex: int) -> tuple[int, tuple[int, ...], dict[int, int]]:
    """Return size, weights and neighbours (with the edge's weight) of one line."""
    numbers = line.integers(minimum=0, what="weights and neighbours")
    head = header.has_sizes + header.constraints
    step = 1 + header.has_edge_weights
    if len(numbers) < head or (len(numbers) - head) % step:
        shape = f"{head} numbers and then {'pairs' if step == 2 else 'neighbours'}"
        raise line.make_error(
            "E371", f"{len(numbers)} numbers, where {shape} are expected", fix="compare with the format code"
        )
    near: dict[int, int] = {}
    for at in range(head, len(numbers), step):
        neighbour, weight = numbers[at] - 1, numbers[at + 1] if step == 2 else 1
        if not 0 <= neighbour < header.vertices:
            raise line.make_error(
                "E373", f"neighbour {neighbour + 1} of {header.vertices} vertices", fix="vertices begin at 1"
            )
        if neighbour == vertex:
            raise line.make_error("E373", f"vertex {vertex + 1} is its own neighbour", fix="leave the loop out")
        if neighbour in near:
            raise line.make_error("E373", f"neighbour {neighbour + 1} is named twice", fix="name it once")
        if weight < 1:
            raise line.make_error("E375", f"an edge of weight {weight}", fix="edge weights are 1 or more")
        near[neighbour] = weight
    weights = tuple(numbers[int(header.has_sizes) : head]) if header.constraints else (1,)
    return numbers[0] if header.has_sizes else 1, weights, near


def _assemble(
    header: _Header,
    body: list[SourceLine],
    weights: list[tuple[int, ...]],
    sizes: list[int],
    adjacency: list[dict[int, int]],
) -> Hypergraph:
    """Return the graph, once both ends of every edge agree and nothing overflows."""
    for vertex, near in enumerate(adjacency):
        for neighbour, weight in near.items():
            back = adjacency[neighbour].get(vertex)
            if back == weight:
                continue
            there = f"vertex {neighbour + 1} (line {body[neighbour].number})"
            says = f"with weight {back}" if back is not None else "not"
            facts = f"vertex {vertex + 1} names {neighbour + 1} with weight {weight}, {there} names it {says}"
            raise body[vertex].make_error("E376", facts, fix="write every edge at both of its ends, with one weight")
    nets = [(vertex, other) for vertex, near in enumerate(adjacency) for other in near if vertex < other]
    if len(nets) != header.edges:
        facts = f"{header.edges} edges are announced and {len(nets)} are there"
        raise header.line.make_error("E372", facts, fix=f"write {len(nets)}, or fetch the file again")
    of_nets = [adjacency[a][b] for a, b in nets]
    totals = [sum(sizes), sum(of_nets), *(sum(column) for column in zip(*weights, strict=True))]
    if max(totals) > MAX_VALUE:
        raise header.line.make_error("E375", f"weights that add up to {max(totals)} overflow", fix="divide the weights")
    return Hypergraph(tuple(weights), tuple(sizes), tuple(nets), tuple(of_nets))


def read_hmetis(text: str, file: str) -> Hypergraph:
    """Return the hypergraph in an hMETIS file. Raises BadInput (E370 to E375), naming file and line."""
    lines = [line for line in read_lines(text, file, comment="%") if line.text.strip()]
    if not lines:
        raise SourceLine(file, 1, "").make_error("E370", "only comments, no hypergraph", fix="fetch the file again")
    header, body = lines[0], lines[1:]
    fields = header.text.split()
    if not 2 <= len(fields) <= 3:
        raise header.make_error("E371", f"a header of {len(fields)} fields", fix="write: nets vertices [fmt]")
    count, vertices, *_ = header.integers(minimum=0, what="counts")
    code = fields[2].zfill(2) if len(fields) > 2 else "00"
    if len(code) != 2 or set(code) - {"0", "1"}:
        raise header.make_error("E371", f"no format {fields[2]!r}", fix="one of 0, 1, 10, 11")
    wanted = count + (vertices if code[0] == "1" else 0)
    if len(body) != wanted:
        facts = f"{wanted} lines are announced and {len(body)} follow"
        raise header.make_error("E372", facts, fix="fetch the file again: it is cut off, or its first line is wrong")
    nets = [_parse_net(line, vertices, weighted=code[1] == "1") for line in body[:count]]
    weights = [_parse_weight(line) for line in body[count:]] if code[0] == "1" else [1] * vertices
    net_weights = tuple(weight for weight, _ in nets)
    if max(sum(weights), sum(net_weights)) > MAX_VALUE:
        raise header.make_error("E375", "weights that overflow when they are added", fix="divide the weights")
    pins = tuple(pins for _, pins in nets)
    return Hypergraph(tuple((weight,) for weight in weights), (1,) * vertices, pins, net_weights)


def _parse_net(line: SourceLine, vertices: int, *, weighted: bool) -> tuple[int, tuple[int, ...]]:
    numbers = line.integers(minimum=0, what="a net's weight and pins")
    weight, pins = (numbers[0], numbers[1:]) if weighted else (1, numbers)
    if not pins:
        raise line.make_error("E371", "a net without pins", fix="name the vertices that it joins, or leave the net out")
    for pin in pins:
        if not 1 <= pin <= vertices:
            raise line.make_error("E373", f"pin {pin} of {vertices} vertices", fix="vertices begin at 1")
    if len(set(pins)) < len(pins):
        twice = next(pin for pin in pins if pins.count(pin) > 1)
        raise line.make_error("E373", f"pin {twice} is named twice", fix="name it once")
    return weight, tuple(pin - 1 for pin in pins)


def _parse_weight(line: SourceLine) -> int:
    numbers = line.integers(minimum=0, what="vertex weights")
    if len(numbers) != 1:
        raise line.make_error(
            "E371", f"{len(numbers)} numbers, where one weight is expected", fix="write one weight a line"
        )
    return numbers[0]
