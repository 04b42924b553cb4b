"""Reads a graph file of METIS (manual of METIS 5, section 4.1.1).

The first line is `vertices edges [fmt [ncon]]`, where fmt says whether vertices have sizes (100), vertices have weights
(10) and edges have weights (1). Then a line per vertex: [size] [ncon weights] neighbour [weight] neighbour [weight] ...
Lines that begin with % are comments; an empty line is a vertex without neighbours.
"""

from dataclasses import dataclass

from .source_line import LARGEST, FileLine, lines_of
from .hypergraph import Hypergraph


@dataclass(frozen=True)
class _Header:
    """What the first line says. constraints: weights a vertex, 0 where none are written."""

    line: FileLine
    vertices: int
    edges: int
    has_sizes: bool
    constraints: int
    has_edge_weights: bool


def read_metis(text: str, file: str) -> Hypergraph:
    """The graph in a METIS file. Raises BadInput (E370 to E376), naming file and line."""
    lines = list(lines_of(text, file, comment="%"))
    while lines and not lines[0].text.strip():
        lines.pop(0)
    if not lines:
        raise FileLine(file, 1, "").wrong("E370", "only comments, no graph", fix="fetch the file again")
    header = _header(lines[0])
    body = lines[1:]
    while len(body) > header.vertices and not body[-1].text.strip():
        body.pop()
    if len(body) != header.vertices:
        facts = f"{header.vertices} vertices are announced and {len(body)} lines follow"
        raise header.line.wrong("E372", facts, fix="fetch the file again: it is cut off, or its first line is wrong")
    weights, sizes, adjacency = [], [], []
    for vertex, line in enumerate(body):
        size, weight, near = _vertex(line, header, vertex)
        weights.append(weight)
        sizes.append(size)
        adjacency.append(near)
    return _joined(header, body, weights, sizes, adjacency)


def _header(line: FileLine) -> _Header:
    fields = line.text.split()
    if not 2 <= len(fields) <= 4:
        raise line.wrong("E371", f"a header of {len(fields)} fields", fix="write: vertices edges [fmt [ncon]]")
    counts = FileLine(line.file, line.number, " ".join([*fields[:2], *fields[3:]])).integers(least=0, what="counts")
    code = fields[2].zfill(3) if len(fields) > 2 else "000"
    if len(code) != 3 or set(code) - {"0", "1"}:
        raise line.wrong("E371", f"no format {fields[2]!r}", fix="one of 0, 1, 10, 11, 100, 101, 110, 111")
    has_weights = code[1] == "1"
    if len(fields) == 4 and (not has_weights or counts[2] < 1):
        facts = f"ncon {counts[2]} with format {fields[2]}"
        raise line.wrong(
            "E371", facts, fix="ncon is 1 or more, and needs a format with vertex weights: 10, 11, 110, 111"
        )
    constraints = counts[2] if len(fields) == 4 else int(has_weights)
    return _Header(line, counts[0], counts[1], code[0] == "1", constraints, code[2] == "1")


def _vertex(line: FileLine, header: _Header, vertex: int) -> tuple[int, tuple[int, ...], dict[int, int]]:
    """Size, weights and neighbours (with the edge's weight) of one line."""
    numbers = line.integers(least=0, what="weights and neighbours")
    head = header.has_sizes + header.constraints
    step = 1 + header.has_edge_weights
    if len(numbers) < head or (len(numbers) - head) % step:
        shape = f"{head} numbers and then {'pairs' if step == 2 else 'neighbours'}"
        raise line.wrong(
            "E371", f"{len(numbers)} numbers, where {shape} are expected", fix="compare with the format code"
        )
    near: dict[int, int] = {}
    for at in range(head, len(numbers), step):
        neighbour, weight = numbers[at] - 1, numbers[at + 1] if step == 2 else 1
        if not 0 <= neighbour < header.vertices:
            raise line.wrong(
                "E373", f"neighbour {neighbour + 1} of {header.vertices} vertices", fix="vertices begin at 1"
            )
        if neighbour == vertex:
            raise line.wrong("E373", f"vertex {vertex + 1} is its own neighbour", fix="leave the loop out")
        if neighbour in near:
            raise line.wrong("E373", f"neighbour {neighbour + 1} is named twice", fix="name it once")
        if weight < 1:
            raise line.wrong("E375", f"an edge of weight {weight}", fix="edge weights are 1 or more")
        near[neighbour] = weight
    weights = tuple(numbers[int(header.has_sizes) : head]) if header.constraints else (1,)
    return numbers[0] if header.has_sizes else 1, weights, near


def _joined(
    header: _Header,
    body: list[FileLine],
    weights: list[tuple[int, ...]],
    sizes: list[int],
    adjacency: list[dict[int, int]],
) -> Hypergraph:
    """The graph, once both ends of every edge agree and nothing overflows."""
    for vertex, near in enumerate(adjacency):
        for neighbour, weight in near.items():
            back = adjacency[neighbour].get(vertex)
            if back == weight:
                continue
            there = f"vertex {neighbour + 1} (line {body[neighbour].number})"
            says = f"with weight {back}" if back is not None else "not"
            facts = f"vertex {vertex + 1} names {neighbour + 1} with weight {weight}, {there} names it {says}"
            raise body[vertex].wrong("E376", facts, fix="write every edge at both of its ends, with one weight")
    nets = [(vertex, other) for vertex, near in enumerate(adjacency) for other in near if vertex < other]
    if len(nets) != header.edges:
        facts = f"{header.edges} edges are announced and {len(nets)} are there"
        raise header.line.wrong("E372", facts, fix=f"write {len(nets)}, or fetch the file again")
    of_nets = [adjacency[a][b] for a, b in nets]
    totals = [sum(sizes), sum(of_nets), *(sum(column) for column in zip(*weights, strict=True))]
    if max(totals) > LARGEST:
        raise header.line.wrong("E375", f"weights that add up to {max(totals)} overflow", fix="divide the weights")
    return Hypergraph(tuple(weights), tuple(sizes), tuple(nets), tuple(of_nets))
