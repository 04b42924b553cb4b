"""The HTML pages: one for a placement (`cutset show`), one for a run (`cutset train` and `demo`)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import msgspec

from ...partition.placement.placement_file import CandidateScore, Placement
from ..analysis.measured_step import MeasuredStep
from ..figures.cut_map_edges import collect_crossings
from ..figures.gantt import LEGEND, render_gantt
from ..figures.learning_curves import render_accuracy_curves, render_loss_curves, render_test_loss_curves
from ..figures.load_and_traffic import render_link_matrix, render_load_bars, render_traffic_matrix
from ..figures.staleness import render_staleness_heatmap, render_staleness_histograms, render_waiting_bars
from ..units import NONE, format_bytes, format_count, format_percent, format_seconds
from .cut_map_card import render_cut_map_card
from .html import (
    TableColumn,
    TableRow,
    render_card,
    render_facts,
    render_figures,
    render_fold,
    render_header,
    render_notes,
    render_page,
    render_settings,
    render_table,
)
from .table_rows import (
    ITERATION_COLUMNS,
    SHARD_COLUMNS,
    WORKER_COLUMNS,
    format_iteration,
    format_results,
    format_shard,
    format_worker,
    is_chosen,
    rank_candidates,
)

_MAX_LINKS = 16
_CANDIDATES = (
    "The plans that were compared. The fastest wins, of those that fit and leave no machine nearly idle, or out unless "
    "--max-machines allows it; among those that are within 3 % of it, which is less than the prediction can tell, "
    "the one that sends fewest bytes. "
    "Min load: the work of the least busy machine, as a fraction of an even share."
)


def render_placement_page(placement: Placement) -> str:
    """Render a placement as one HTML file: verdict, cut map, load, traffic, the predicted step and the candidates."""
    versions = ", ".join(f"{name} {version}" for name, version in placement.versions.items())
    foot = f"Placement format {placement.format}, batch {placement.batch}, seed {placement.seed}; {versions}"
    body = (
        render_header(f"Cut of {placement.model}", placement.verdict)
        + _render_key_facts(placement)
        + _render_plan(placement)
    )
    return render_page(f"cutset: cut of {placement.model}", body + f"<footer>{escape(foot)}</footer>")


def render_run_page(placement: Placement | None, result: Mapping[str, Any]) -> str:
    """Render a run as one HTML file: the result table and curves first, then the cut it ran with, if it had one."""
    rows = render_card("Result", "", render_results(result) + render_notes(result.get("notes") or ()))
    curves = "".join(
        render_card(title, "", render_figures(partial(draw, result)))
        for title, draw in (
            ("Test accuracy", render_accuracy_curves),
            ("Test loss", render_test_loss_curves),
            ("Loss", render_loss_curves),
        )
    )
    asynchrony = (
        _render_iterations(result) if "iterations" in result else _render_staleness(result) + _render_waiting(result)
    )
    plan = "" if placement is None else _render_plan(placement, result.get("measured"))
    used = render_settings(result.get("settings") or {}) + render_settings(result.get("versions") or {})
    body = (
        render_header(f"Run of {result['task']}", result["verdict"])
        + rows
        + f'<div class="pair">{curves}</div>\n'
        + asynchrony
    )
    return render_page(
        f"cutset: run of {result['task']}",
        body + _render_links(result) + plan + render_card("Settings and versions", "", used),
    )


def _render_iterations(result: Mapping[str, Any]) -> str:
    """Render the table of the iterations of a batch method."""
    lead = (
        "Evaluations: of loss and gradient, since the beginning. Round trips and bytes: the coordinator's, which "
        "handles scalars only. Issued twice: late portions that a second replica computed as well."
    )
    return render_card("Iterations", lead, _render_list(ITERATION_COLUMNS, map(format_iteration, result["iterations"])))


def _render_staleness(result: Mapping[str, Any]) -> str:
    """Render staleness by worker and, if there are several shards, by worker and shard."""
    shards = (result.get("server_statistics") or {}).get("shards") or ()
    heat = render_figures(partial(render_staleness_heatmap, shards)) if len(shards) > 1 else ""
    return render_card(
        "Staleness",
        "Updates by others between a worker's fetch and its push: how many of its pushes had which staleness.",
        render_figures(partial(render_staleness_histograms, result.get("staleness") or {})) + heat,
    )


def _render_waiting(result: Mapping[str, Any]) -> str:
    """Render how long workers waited, and what the shards did."""
    served = result.get("server_statistics")
    if not served:
        return ""
    lists = render_fold("All workers", _render_list(WORKER_COLUMNS, map(format_worker, served["workers"])))
    lists += render_fold("All shards", _render_list(SHARD_COLUMNS, map(format_shard, served["shards"])))
    body = (
        render_figures(partial(render_waiting_bars, served["workers"]))
        + render_notes(result.get("server_findings") or ())
        + lists
    )
    return render_card("Waiting", "The fraction of its time that each worker waited for the shards.", body)


def _render_list(labels: Sequence[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Render a table whose first column is a name and whose others are numbers."""
    return render_table(
        [TableColumn(label, number=i > 0) for i, label in enumerate(labels)], [TableRow(cells) for cells in rows]
    )


def render_results(result: Mapping[str, Any]) -> str:
    """Render the result table."""
    return _render_list(*format_results(result["rows"]))


def _render_key_facts(placement: Placement) -> str:
    predicted = placement.predicted
    fullness = max((m.memory_used_bytes / m.memory_bytes for m in placement.machines if m.memory_bytes), default=0.0)
    work = sum(machine.flops for machine in placement.machines)
    return render_facts(
        [
            ("Machines", str(len(placement.machines)), f"{format_count(work)}FLOP a step"),
            ("Predicted step", format_seconds(predicted.step_s), f"{placement.batch} samples"),
            (
                "Against one machine",
                _describe_speedup(predicted.one_machine_s, predicted.step_s),
                f"one takes {format_seconds(predicted.one_machine_s)}",
            ),
            (
                "Crossing, forward",
                format_bytes(predicted.bytes_forward),
                f"{predicted.messages_forward} message{'' if predicted.messages_forward == 1 else 's'}",
            ),
            ("Peak memory", format_percent(fullness), "of its machine, where it is fullest"),
        ]
    )


def _describe_speedup(one_s: float, step_s: float) -> str:
    """Compare the plan's step with one machine's: "1.62 × faster"."""
    if not one_s or not step_s:
        return NONE
    return f"{one_s / step_s:.2f} × faster" if step_s <= one_s else f"{step_s / one_s:.2f} × slower"


def _render_plan(placement: Placement, measured: Mapping[str, Any] | None = None) -> str:
    """Render the figures of a placement, and the same in tables."""
    load = "The work of each machine in a step, forward and backward."
    traffic = "Bytes sent from row to column in a forward pass; the backward pass sends as many back."
    lead = (
        "Operators in order of execution; each box is divided among its machines. For details hover, tap, or take the "
        "arrow keys."
    )
    return (
        render_cut_map_card(placement, lead, render_fold("All crossing tensors", _render_crossings(placement)))
        + render_card("Load", load, render_figures(partial(render_load_bars, placement)))
        + render_card("Traffic", traffic, render_figures(partial(render_traffic_matrix, placement)))
        + _render_step(placement, measured)
        + render_card("Candidates", _CANDIDATES, render_candidates(placement))
    )


def _render_step(placement: Placement, measured: Mapping[str, Any] | None) -> str:
    """Render a step as predicted and, if some were recorded, as measured. measured: as in a result."""
    if measured is None:
        return render_card("Predicted step", LEGEND, render_figures(partial(render_gantt, placement)))
    typical = msgspec.convert(measured["step"], MeasuredStep)
    among = f"the median of {typical.of} that" if typical.of > 1 else "the one that"
    lead = (
        f"{LEGEND} Measured: step {typical.step}, {among} replica 0 recorded; "
        "a measured send lasts until the receiver takes it."
    )
    gantt = render_figures(partial(render_gantt, placement, typical))
    return render_card("A step, predicted and measured", lead, gantt + render_notes(measured["findings"]))


def render_candidates(placement: Placement) -> str:
    """Render all candidate plans, fastest first."""
    columns = [
        TableColumn("plan"),
        TableColumn("in words"),
        *(TableColumn(label, number=True) for label in ("machines", "predicted step", "bytes forward")),
    ]
    columns += [
        TableColumn("peak memory", number=True),
        TableColumn("fits"),
        TableColumn("min load (of even share)", number=True),
    ]
    return render_table(
        columns, [_make_candidate_row(score, won=is_chosen(score, placement)) for score in rank_candidates(placement)]
    )


def _make_candidate_row(score: CandidateScore, *, won: bool) -> TableRow:
    cells = (
        score.name,
        score.split,
        str(score.machines),
        format_seconds(score.step_s),
        format_bytes(score.bytes_forward),
        format_bytes(score.peak_memory_bytes),
        "yes" if score.fits else "no",
        format_percent(score.min_load),
    )
    return TableRow(cells, tag="winner" if won else "", best=won, bad=() if score.fits else (5, 6))


def _render_crossings(placement: Placement) -> str:
    items = sorted(collect_crossings(placement).values(), key=lambda item: (-item.total, item.tensor))
    columns = [
        TableColumn("tensor"),
        TableColumn("bytes forward", number=True),
        TableColumn("pairs", number=True),
        TableColumn("busiest pair"),
    ]
    rows = []
    for item in items:
        (source, target), count = max(item.pairs.items(), key=lambda pair: (pair[1], pair[0]))
        busiest = f"{source} → {target}, {format_bytes(count)}"
        rows.append(TableRow((item.tensor, format_bytes(item.total), str(len(item.pairs)), busiest)))
    return render_table(columns, rows)


def _render_links(result: Mapping[str, Any]) -> str:
    """Render the measured bytes between processes: a matrix, and all links as a table."""
    links = result.get("links") or ()
    if not links:
        return ""
    busiest = sorted(links, key=lambda link: (-link["bytes"], link["source"], link["target"]))
    columns = [TableColumn("from"), TableColumn("to")]
    columns += [TableColumn(label, number=True) for label in ("bytes", "bytes a step", "messages")]
    rows = [
        TableRow(
            (
                str(x["source"]),
                str(x["target"]),
                *map(format_bytes, (x["bytes"], x.get("bytes_per_step"))),
                str(x["messages"]),
            )
        )
        for x in busiest
    ]
    names = {link[end] for link in links for end in ("source", "target")}
    matrix = render_figures(partial(render_link_matrix, links)) if len(names) <= _MAX_LINKS else ""
    listed = render_fold("All links", render_table(columns, rows)) if matrix else render_table(columns, rows)
    return render_card(
        "Traffic, measured",
        "Bytes sent from row to column in training, without the tests.",
        matrix + listed,
    )
