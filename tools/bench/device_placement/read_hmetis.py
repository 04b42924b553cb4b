"""Reads a hypergraph file of hMETIS (manual of hMETIS 1.5, section 5.1).

The first line is `nets vertices [fmt]`, where fmt says whether vertices have weights (10) and nets have weights (1).
Then a line per net: [weight] pin pin ..., and, with vertex weights, a line per vertex. Lines that begin with % are
comments.
"""

from .source_line import LARGEST, FileLine, lines_of
from .hypergraph import Hypergraph


def read_hmetis(text: str, file: str) -> Hypergraph:
    """The hypergraph in an hMETIS file. Raises BadInput (E370 to E375), naming file and line."""
    lines = [line for line in lines_of(text, file, comment="%") if line.text.strip()]
    if not lines:
        raise FileLine(file, 1, "").wrong("E370", "only comments, no hypergraph", fix="fetch the file again")
    header, body = lines[0], lines[1:]
    fields = header.text.split()
    if not 2 <= len(fields) <= 3:
        raise header.wrong("E371", f"a header of {len(fields)} fields", fix="write: nets vertices [fmt]")
    count, vertices, *_ = header.integers(least=0, what="counts")
    code = fields[2].zfill(2) if len(fields) > 2 else "00"
    if len(code) != 2 or set(code) - {"0", "1"}:
        raise header.wrong("E371", f"no format {fields[2]!r}", fix="one of 0, 1, 10, 11")
    wanted = count + (vertices if code[0] == "1" else 0)
    if len(body) != wanted:
        facts = f"{wanted} lines are announced and {len(body)} follow"
        raise header.wrong("E372", facts, fix="fetch the file again: it is cut off, or its first line is wrong")
    nets = [_net(line, vertices, weighted=code[1] == "1") for line in body[:count]]
    weights = [_weight(line) for line in body[count:]] if code[0] == "1" else [1] * vertices
    net_weights = tuple(weight for weight, _ in nets)
    if max(sum(weights), sum(net_weights)) > LARGEST:
        raise header.wrong("E375", "weights that overflow when they are added", fix="divide the weights")
    pins = tuple(pins for _, pins in nets)
    return Hypergraph(tuple((weight,) for weight in weights), (1,) * vertices, pins, net_weights)


def _net(line: FileLine, vertices: int, *, weighted: bool) -> tuple[int, tuple[int, ...]]:
    numbers = line.integers(least=0, what="a net's weight and pins")
    weight, pins = (numbers[0], numbers[1:]) if weighted else (1, numbers)
    if not pins:
        raise line.wrong("E371", "a net without pins", fix="name the vertices that it joins, or leave the net out")
    for pin in pins:
        if not 1 <= pin <= vertices:
            raise line.wrong("E373", f"pin {pin} of {vertices} vertices", fix="vertices begin at 1")
    if len(set(pins)) < len(pins):
        twice = next(pin for pin in pins if pins.count(pin) > 1)
        raise line.wrong("E373", f"pin {twice} is named twice", fix="name it once")
    return weight, tuple(pin - 1 for pin in pins)


def _weight(line: FileLine) -> int:
    numbers = line.integers(least=0, what="vertex weights")
    if len(numbers) != 1:
        raise line.wrong("E371", f"{len(numbers)} numbers, where one vertex's weight is expected", fix="one a line")
    return numbers[0]
