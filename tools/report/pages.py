"""The pages: one for a placement (`cutset show`), one for a run (`cutset train` and `demo`)."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from ...partition.placement.placement_file import Placement, Score
from ..figures.cut_map_edges import crossings
from ..analysis.measured import Measured
from .html import Column, Row, card, facts, fold, header, notes, page, settings, table
from ..figures.picture import (
    accuracy_curves,
    cut_map,
    gantt,
    link_matrix,
    load_bars,
    loss_curves,
    staleness_heat,
    staleness_histograms,
    traffic_matrix,
    waiting_bars,
)
from .table_rows import (
    ITERATION_COLUMNS,
    RESULT_COLUMNS,
    SHARD_COLUMNS,
    WORKER_COLUMNS,
    is_chosen,
    iteration_cells,
    ranked,
    result_cells,
    shard_cells,
    worker_cells,
)
from ..units import NONE, bytes_text, count_text, percent_text, seconds_text

_MOST_LINKS = 16
_CANDIDATES = (
    "Plans that were compared: the fastest wins of those that fit and leave no machine nearly idle. "
    "The least share is the smallest work of a machine against its even part."
)


def placement_page(placement: Placement) -> str:
    """A placement as one HTML file: verdict, cut map, load, traffic, the predicted step and the candidates."""
    versions = ", ".join(f"{name} {version}" for name, version in placement.versions.items())
    foot = f"Placement format {placement.format}, batch {placement.batch}, seed {placement.seed}; {versions}"
    body = header(f"Cut of {placement.model}", placement.verdict) + _key_facts(placement) + _plan(placement)
    return page(f"cutset: cut of {placement.model}", body + f"<footer>{escape(foot)}</footer>")


def run_page(placement: Placement | None, result: Mapping[str, Any]) -> str:
    """A run as one HTML file: the result table and curves first, then the cut it ran with, if it had one."""
    rows = card("Result", "", result_rows(result) + notes(result.get("notes") or ()))
    curves = "".join(
        card(title, "", figure, scroll=True)
        for title, figure in (
            ("Test accuracy", accuracy_curves(result, standalone=False)),
            ("Loss", loss_curves(result, standalone=False)),
        )
    )
    late = _iterations(result) if "iterations" in result else _staleness(result) + _served(result)
    plan = "" if placement is None else _plan(placement, result.get("measured"))
    used = settings(result.get("settings") or {}) + settings(result.get("versions") or {})
    body = header(f"Run of {result['task']}", result["verdict"]) + rows + f'<div class="pair">{curves}</div>\n' + late
    return page(
        f"cutset: run of {result['task']}", body + _links(result) + plan + card("Settings and versions", "", used)
    )


def _iterations(result: Mapping[str, Any]) -> str:
    """What each iteration of a batch method came to."""
    said = (
        "Evaluations are of loss and gradient, since the beginning. Round trips and bytes are those of the "
        "coordinator, which sees numbers alone. Portions that were late were given to two replicas."
    )
    return card("Iterations", said, _listed(ITERATION_COLUMNS, map(iteration_cells, result["iterations"])), scroll=True)


def _staleness(result: Mapping[str, Any]) -> str:
    """Per worker, and per worker and shard where there are several shards."""
    shards = (result.get("served") or {}).get("shards") or ()
    heat = staleness_heat(shards, standalone=False) if len(shards) > 1 else ""
    return card(
        "Staleness",
        "Updates by others between a worker's fetch and its push, as part of its pushes.",
        staleness_histograms(result.get("staleness") or {}, standalone=False) + heat,
        scroll=True,
    )


def _served(result: Mapping[str, Any]) -> str:
    """What workers waited for, and what the shards did."""
    found = result.get("served")
    if not found:
        return ""
    lists = fold("All workers", _listed(WORKER_COLUMNS, map(worker_cells, found["workers"])))
    lists += fold("All shards", _listed(SHARD_COLUMNS, map(shard_cells, found["shards"])))
    body = waiting_bars(found["workers"], standalone=False) + notes(result.get("served_why") or ()) + lists
    return card("Waiting", "Part of its time in which a worker waited for the shards.", body, scroll=True)


def _listed(labels: Sequence[str], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of a name and numbers."""
    return table([Column(label, number=i > 0) for i, label in enumerate(labels)], [Row(cells) for cells in rows])


def result_rows(result: Mapping[str, Any]) -> str:
    """The result table as HTML."""
    return _listed(RESULT_COLUMNS, map(result_cells, result["rows"]))


def _key_facts(placement: Placement) -> str:
    predicted = placement.predicted
    fullest = max((m.memory_used_bytes / m.memory_bytes for m in placement.machines if m.memory_bytes), default=0.0)
    work = sum(machine.flops for machine in placement.machines)
    return facts(
        [
            ("Machines", str(len(placement.machines)), f"{count_text(work)}FLOP a step"),
            ("Predicted step", seconds_text(predicted.step_s), f"{placement.batch} samples"),
            (
                "Against one machine",
                _against(predicted.one_machine_s, predicted.step_s),
                f"one takes {seconds_text(predicted.one_machine_s)}",
            ),
            (
                "Crossing, forward",
                bytes_text(predicted.bytes_forward),
                f"{predicted.messages_forward} message{'' if predicted.messages_forward == 1 else 's'}",
            ),
            ("Fullest memory", percent_text(fullest), "of its machine"),
        ]
    )


def _against(one_s: float, step_s: float) -> str:
    """One machine's step against the plan's: "1.62 × faster"."""
    if not one_s or not step_s:
        return NONE
    return f"{one_s / step_s:.2f} × faster" if step_s <= one_s else f"{step_s / one_s:.2f} × slower"


def _plan(placement: Placement, measured: Mapping[str, Any] | None = None) -> str:
    """The pictures of a placement, and the same in tables."""
    pair = card(
        "Load",
        "What a step gives each machine, forward and backward.",
        load_bars(placement, standalone=False),
        scroll=True,
    ) + card(
        "Traffic",
        "Bytes from row to column in a forward pass; the backward pass returns as many.",
        traffic_matrix(placement, standalone=False),
        scroll=True,
    )
    return (
        card(
            "Cut map",
            "Operators in order of execution, each divided into its machines' territory. Point at one for details.",
            cut_map(placement, standalone=False) + fold("All crossing tensors", _crossing_table(placement)),
            scroll=True,
        )
        + f'<div class="pair">{pair}</div>\n'
        + _step(placement, measured)
        + card("Candidates", _CANDIDATES, candidate_table(placement))
    )


def _step(placement: Placement, measured: Mapping[str, Any] | None) -> str:
    """A step as predicted and, where some were recorded, as measured. measured: of a result."""
    if measured is None:
        drawn = gantt(placement, standalone=False)
        return card("Predicted step", "Compute above, sends below.", drawn, scroll=True)
    typical = msgspec.convert(measured["typical"], Measured)
    among = f"the median of {typical.of} that" if typical.of > 1 else "the one that"
    lead = (
        f"Compute above, sends below. Measured is step {typical.step}, {among} replica 0 recorded; "
        "a send lasts there until the receiver takes it."
    )
    drawn = gantt(placement, typical, standalone=False)
    return card("A step, predicted and measured", lead, drawn + notes(measured["why"]), scroll=True)


def candidate_table(placement: Placement) -> str:
    """All candidate plans, fastest first, as HTML."""
    columns = [
        Column("plan"),
        *(Column(label, number=True) for label in ("machines", "predicted step", "bytes forward")),
    ]
    columns += [Column("fullest memory", number=True), Column("fits"), Column("least share of a machine", number=True)]
    return table(columns, [_candidate(score, won=is_chosen(score, placement)) for score in ranked(placement)])


def _candidate(score: Score, *, won: bool) -> Row:
    cells = (
        score.name,
        str(score.machines),
        seconds_text(score.step_s),
        bytes_text(score.bytes_forward),
        bytes_text(score.memory_max_bytes),
        "yes" if score.fits else "no",
        percent_text(score.least_share),
    )
    return Row(cells, tag="winner" if won else "", best=won, bad=() if score.fits else (4, 5))


def _crossing_table(placement: Placement) -> str:
    items = sorted(crossings(placement).values(), key=lambda item: (-item.total, item.tensor))
    columns = [
        Column("tensor"),
        Column("bytes forward", number=True),
        Column("pairs", number=True),
        Column("busiest pair"),
    ]
    rows = []
    for item in items:
        (source, target), count = max(item.pairs.items(), key=lambda pair: (pair[1], pair[0]))
        busiest = f"{source} → {target}, {bytes_text(count)}"
        rows.append(Row((item.tensor, bytes_text(item.total), str(len(item.pairs)), busiest)))
    return table(columns, rows)


def _links(result: Mapping[str, Any]) -> str:
    """Measured bytes between processes: a matrix, and all links as a table."""
    links = result.get("links") or ()
    if not links:
        return ""
    busiest = sorted(links, key=lambda link: (-link["bytes"], link["source"], link["target"]))
    columns = [Column("from"), Column("to")]
    columns += [Column(label, number=True) for label in ("bytes", "bytes a step", "messages")]
    rows = [
        Row(
            (
                str(x["source"]),
                str(x["target"]),
                *map(bytes_text, (x["bytes"], x.get("bytes_per_step"))),
                str(x["messages"]),
            )
        )
        for x in busiest
    ]
    names = {link[end] for link in links for end in ("source", "target")}
    matrix = link_matrix(links, standalone=False) if len(names) <= _MOST_LINKS else ""
    listed = fold("All links", table(columns, rows)) if matrix else table(columns, rows)
    return card(
        "Traffic, measured", "Bytes from row to column in training, without the tests.", matrix + listed, scroll=True
    )
