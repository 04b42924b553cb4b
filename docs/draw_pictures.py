"""Draws the pictures of the documentation, docs/pictures/*.svg, from the descriptions below.

Run by `make docs`. A picture is boxes, placed by hand on a grid, and arrows between them; a box has the colour of the
package that its code is in.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "pictures"
COLOURS = {
    "models": "#b8e0d2",
    "partition": "#cfe0ff",
    "runtime": "#ffe3b3",
    "ps": "#f7c9d4",
    "tools": "#e2d4f5",
    "file": "#eeeeee",
}
GRID_X, GRID_Y, MARGIN = 24, 20, 16  # pixels
TEXT = 'font-family="system-ui, sans-serif" fill="#1b1f24"'


@dataclass(frozen=True)
class Box:
    """A noun or a step. place: (column, row, width, height) on the grid; kind: a key of COLOURS, or "frame"."""

    name: str
    kind: str
    place: tuple[float, float, float, float]
    lines: Sequence[str] = ()

    def rectangle(self) -> tuple[float, float, float, float]:
        """Return left, top, width and height in pixels."""
        column, row, width, height = self.place
        return MARGIN + column * GRID_X, MARGIN + row * GRID_Y, width * GRID_X, height * GRID_Y


@dataclass(frozen=True)
class Arrow:
    """From box to box, by name; both: with a head at either end; at: where along the label stands, 0 to 1."""

    start: str
    stop: str
    label: str = ""
    both: bool = False
    at: float = 0.5


def draw(boxes: Sequence[Box], arrows: Sequence[Arrow], title: str) -> str:
    """Return the picture as SVG text."""
    by_name = {box.name: box for box in boxes}
    right = max(x + w for x, _, w, _ in (box.rectangle() for box in boxes)) + MARGIN
    bottom = max(y + h for _, y, _, h in (box.rectangle() for box in boxes)) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:g} {bottom:g}" width="{right:g}" role="img">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>',
        f'<rect width="{right:g}" height="{bottom:g}" fill="#ffffff"/>',
    ]
    parts += [draw_box(box) for box in boxes if box.kind == "frame"]
    parts += [draw_arrow(arrow, by_name[arrow.start], by_name[arrow.stop]) for arrow in arrows]
    parts += [draw_box(box) for box in boxes if box.kind != "frame"]
    parts += [draw_label(arrow, by_name[arrow.start], by_name[arrow.stop]) for arrow in arrows if arrow.label]
    return "\n".join([*parts, "</svg>", ""])


def draw_box(box: Box) -> str:
    """Return a rectangle with its name and, below it, its lines."""
    x, y, width, height = box.rectangle()
    if box.kind == "frame":
        style = 'fill="none" stroke="#8c959f" stroke-dasharray="5 4"'
        name = f'<text x="{x + 8:g}" y="{y + 16:g}" {TEXT} font-size="12">{escape(box.name)}</text>'
        return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" {style}/>{name}'
    style = f'fill="{COLOURS[box.kind]}" stroke="#57606a"'
    middle, size = x + width / 2, 13
    top = y + height / 2 - (len(box.lines)) * 7.5 + 4.5
    text = [f'<text x="{middle:g}" y="{top:g}" {TEXT} font-size="{size}" font-weight="600" text-anchor="middle">']
    text += [escape(box.name.split("#")[0]), "</text>"]
    for i, line in enumerate(box.lines):
        text.append(f'<text x="{middle:g}" y="{top + 15 * (i + 1):g}" {TEXT} font-size="11" text-anchor="middle">')
        text += [escape(line), "</text>"]
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" {style}/>' + "".join(text)


def ends(start: Box, stop: Box) -> tuple[float, float, float, float]:
    """Where the arrow leaves the one box and meets the other: at the sides that face each other."""
    ax, ay, aw, ah = start.rectangle()
    bx, by, bw, bh = stop.rectangle()
    left, right = max(ax, bx), min(ax + aw, bx + bw)
    top, bottom = max(ay, by), min(ay + ah, by + bh)
    if left < right:  # one above the other
        x = (left + right) / 2
        return (x, ay + ah, x, by) if ay < by else (x, ay, x, by + bh)
    if top < bottom:  # side by side
        y = (top + bottom) / 2
        return (ax + aw, y, bx, y) if ax < bx else (ax, y, bx + bw, y)
    x1, x2 = (ax + aw, bx) if ax < bx else (ax, bx + bw)
    return x1, ay + ah / 2, x2, by + bh / 2


def draw_arrow(arrow: Arrow, start: Box, stop: Box) -> str:
    """Return the line with its heads."""
    x1, y1, x2, y2 = ends(start, stop)
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if arrow.both else "")
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#57606a" stroke-width="1.5" {heads}/>'


def draw_label(arrow: Arrow, start: Box, stop: Box) -> str:
    """Return the words of an arrow, on white so that the line does not cross them."""
    x1, y1, x2, y2 = ends(start, stop)
    x, y = x1 + (x2 - x1) * arrow.at, y1 + (y2 - y1) * arrow.at
    width = 5.6 * len(arrow.label) + 6
    back = f'<rect x="{x - width / 2:g}" y="{y - 8:g}" width="{width:g}" height="16" fill="#ffffff"/>'
    place = f'x="{x:g}" y="{y + 4:g}" {TEXT} font-size="11" text-anchor="middle"'
    return f"{back}<text {place}>{escape(arrow.label)}</text>"


def overview() -> str:
    """How a model becomes a plan, and a plan a training run."""
    boxes = [
        Box("Task", "models", (0, 0, 5.5, 3.4), ("model, loss, data,", "example batch")),
        Box("Graph", "partition", (8, 0, 6, 3.4), ("operators and tensors,", "loop nests over axes")),
        Box("Cut", "partition", (16.5, 0, 7, 3.4), ("by min-cut or layouts:", "boxes of operators, machines")),
        Box("Simulator", "partition", (26, 0, 6.5, 3.4), ("seconds, bytes, memory;", "the fastest plan wins")),
        Box("placement.json", "file", (35, 0, 6, 3.4), ("readable, checked", "against the model")),
        Box("Launcher", "runtime", (35, 6.2, 6, 2.6), ("starts, watches, restarts",)),
        Box("replica 0", "frame", (0, 5.2, 15.5, 5.2)),
        Box("Worker 0.0", "runtime", (0.6, 6.5, 5.6, 3.2), ("segments of autograd", "on machine 0")),
        Box("Worker 0.1", "runtime", (9.3, 6.5, 5.6, 3.2), ("segments of autograd", "on machine 1")),
        Box("replica 1", "frame", (17, 5.2, 15.5, 5.2)),
        Box("Worker 1.0", "runtime", (17.6, 6.5, 5.6, 3.2), ("machine 0",)),
        Box("Worker 1.1", "runtime", (26.3, 6.5, 5.6, 3.2), ("machine 1",)),
        Box("Shard 0", "ps", (4.5, 13.6, 7.5, 3.2), ("slices of the parameters;", "optimizer, versions, journal")),
        Box("Shard 1", "ps", (20.5, 13.6, 7.5, 3.2), ("slices of the parameters;", "optimizer, versions, journal")),
        Box("checkpoint/", "file", (35, 13.6, 6, 3.2), ("manifest with sha256,", "model.safetensors")),
        Box("report.html", "file", (35, 10, 6, 2.4), ("result, trace",)),
    ]
    arrows = [
        Arrow("Task", "Graph", "export"),
        Arrow("Graph", "Cut"),
        Arrow("Cut", "Simulator", both=True),
        Arrow("Simulator", "placement.json"),
        Arrow("placement.json", "Launcher"),
        Arrow("Launcher", "Worker 1.1"),
        Arrow("Worker 0.0", "Worker 0.1", "regions", both=True),
        Arrow("Worker 1.0", "Worker 1.1", "regions", both=True),
        Arrow("Worker 0.0", "Shard 0", both=True),
        Arrow("Worker 0.1", "Shard 0", "push, fetch", both=True),
        Arrow("Worker 1.0", "Shard 1", "push, fetch", both=True),
        Arrow("Worker 1.1", "Shard 1", both=True),
        Arrow("Worker 0.1", "Shard 1", both=True),
        Arrow("Worker 1.0", "Shard 0", both=True),
        Arrow("Shard 1", "checkpoint/"),
        Arrow("Launcher", "report.html"),
    ]
    return draw(boxes, arrows, "From a task to a plan, from a plan to a training run")


def models() -> str:
    """What the user brings."""
    boxes = [
        Box("Task", "models", (11, 0, 8, 3.2), ("model, loss, example,", "data, batch, leaf modules")),
        Box("Data", "models", (11, 6, 8, 2.8), ("inputs and targets of a split",)),
        Box("SampleStream", "models", (23, 6, 8, 2.8), ("which samples batch n holds",)),
        Box("readers/", "models", (0, 6, 7.5, 2.8), ("idx, libsvm, text",)),
        Box("tasks/", "models", (0, 0.2, 7.5, 2.8), ("bundled: digits, mnist, ...",)),
    ]
    arrows = [
        Arrow("tasks/", "Task"),
        Arrow("tasks/", "readers/"),
        Arrow("readers/", "Data"),
        Arrow("Task", "Data", "data(split)"),
        Arrow("Data", "SampleStream", both=True),
    ]
    return draw(boxes, arrows, "models: what the user brings")


def partition() -> str:
    """The order of planning."""
    boxes = [
        Box("capture/", "partition", (0, 0, 7, 3.2), ("torch.export without weights,", "axes, loop nests")),
        Box("operators/", "partition", (0, 6, 7, 3.2), ("a sharding rule per ATen", "operator; run one box")),
        Box("ir/", "partition", (0, 12, 7, 2.8), ("Graph, Op, axes, boxes",)),
        Box("cluster/", "partition", (10, 0, 7, 3.2), ("machines and links;", "the cost of a box")),
        Box("dataflow/", "partition", (10, 6, 7, 3.2), ("Cut -> exchanges; memory;", "the simulator of a step")),
        Box("mincut/", "partition", (20, 0, 7, 3.2), ("blocks, METIS with many", "constraints, KaHyPar")),
        Box("layouts/", "partition", (20, 6, 7, 3.2), ("layouts on meshes by", "variable elimination")),
        Box("planner/", "partition", (30, 3, 7, 3.2), ("candidates, local search,", "choice")),
        Box("placement/", "partition", (30, 9.5, 7, 3.2), ("the file: write, check,", "read back")),
    ]
    arrows = [
        Arrow("capture/", "operators/"),
        Arrow("operators/", "ir/"),
        Arrow("capture/", "cluster/", "Graph"),
        Arrow("cluster/", "dataflow/"),
        Arrow("dataflow/", "layouts/"),
        Arrow("dataflow/", "mincut/"),
        Arrow("mincut/", "planner/", "cuts"),
        Arrow("layouts/", "planner/", "cuts"),
        Arrow("planner/", "placement/", "plan"),
    ]
    return draw(boxes, arrows, "partition: capture, cut, lay out, simulate, choose, write")


def runtime() -> str:
    """How a cut model runs."""
    boxes = [
        Box("launcher/", "runtime", (12.5, 0, 8.5, 3.2), ("start, heartbeats,", "failures, restart")),
        Box("machine 0", "frame", (0, 5, 14, 11)),
        Box("machine 1", "frame", (19.5, 5, 14, 11)),
        Box("Program 0#", "runtime", (1, 6.5, 12, 3), ("segments, edges, schedule as data",)),
        Box("Program 1#", "runtime", (20.5, 6.5, 12, 3), ("segments, edges, schedule as data",)),
        Box("Worker 0#", "runtime", (1, 11.5, 7, 3.6), ("runs what is ready,", "backward first")),
        Box("Worker 1#", "runtime", (25.5, 11.5, 7, 3.6), ("runs what is ready,", "backward first")),
        Box("channel 0#", "runtime", (9, 11.5, 4.2, 3.6), ("ZeroMQ, CURVE,", "shared memory")),
        Box("channel 1#", "runtime", (20.3, 11.5, 4.2, 3.6), ("ZeroMQ, CURVE,", "shared memory")),
    ]
    boxes = [Box(box.name.replace(" 0#", "#0").replace(" 1#", "#1"), box.kind, box.place, box.lines) for box in boxes]
    arrows = [
        Arrow("launcher/", "Program#0"),
        Arrow("launcher/", "Program#1"),
        Arrow("Program#0", "Worker#0"),
        Arrow("Program#1", "Worker#1"),
        Arrow("channel#0", "channel#1", "expand, fold", both=True),
    ]
    return draw(boxes, arrows, "runtime: workers exchange regions of tensors")


def parameter_server() -> str:
    """Where a push and a fetch travel."""
    boxes = [
        Box("methods/", "ps", (0, 0, 8, 3.2), ("when to fetch, step, push:", "Downpour, SSP, sync, EASGD ...")),
        Box("client/", "ps", (11, 0, 8, 3.2), ("windows, replay buffer,", "retransmission")),
        Box("server/", "ps", (23, 0, 8, 3.2), ("shard: numbers, aggregation,", "pending fetches")),
        Box("slices/", "ps", (11, 6, 8, 3.2), ("slice state, compression,", "sparse rows, staleness")),
        Box("optimizers/", "ps", (23, 6, 8, 3.2), ("SGD, Adagrad, Adam,", "DC-ASGD, AdaDelay")),
        Box("checkpoint/", "ps", (34, 0, 7.5, 3.2), ("journal, snapshot,", "manifest")),
        Box("sandblaster/", "ps", (0, 6, 8, 3.2), ("coordinator, L-BFGS,", "line search, work queue")),
    ]
    arrows = [
        Arrow("methods/", "client/"),
        Arrow("client/", "server/", "push / fetch", both=True),
        Arrow("server/", "optimizers/"),
        Arrow("client/", "slices/"),
        Arrow("server/", "slices/"),
        Arrow("server/", "checkpoint/"),
        Arrow("methods/", "sandblaster/"),
    ]
    return draw(boxes, arrows, "ps: sharded parameter servers and the methods that train through them")


def tools() -> str:
    """The steps of a command."""
    steps = [
        ("task/", "load, capture, plan"),
        ("job/", "configure, prepare"),
        ("training/", "run, supervise"),
        ("analysis/", "compare, explain"),
        ("report/", "console, pages"),
    ]
    boxes = [Box(name, "tools", (i * 8, 0, 6.2, 3), (words,)) for i, (name, words) in enumerate(steps)]
    boxes += [
        Box("commands/", "tools", (0, 6, 14.2, 2.8), ("cutset plan, train, eval, ...: each the steps above",)),
        Box("bench/", "tools", (16, 6, 6.2, 2.8), ("cutset bench ...",)),
        Box("figures/", "tools", (32, 6, 6.2, 2.8), ("cut map, Gantt, curves",)),
    ]
    arrows = [Arrow(one, after) for (one, _), (after, _) in pairwise(steps)]
    arrows += [Arrow("commands/", "task/"), Arrow("bench/", "training/"), Arrow("figures/", "report/")]
    return draw(boxes, arrows, "tools: load, capture, plan, configure, run, report")


PICTURES = {
    "overview": overview,
    "models": models,
    "partition": partition,
    "runtime": runtime,
    "ps": parameter_server,
    "tools": tools,
}


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
