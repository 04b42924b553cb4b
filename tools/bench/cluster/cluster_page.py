"""What `cutset bench cluster` found as one HTML file: the table, how it was measured, and the predicted steps."""

from ...report.html import Column, Row, card, facts, header, notes, page, table
from ...figures.picture import gantt
from ...units import count_text, percent_text, seconds_text
from .lockstep_vs_pipelined import Found
from .report import COLUMNS, cells, conditions, promise_lines


def cluster_page(found: Found) -> str:
    """The page."""
    asked, micro, lock_step = found.asked, found.micro, found.lock_step
    compute = "real" if found.flops is None else f"{count_text(found.flops)}FLOP/s, emulated"
    key = facts(
        [
            ("Machines", str(asked.machines), compute),
            ("Link", f"{count_text(8 * asked.rate)}bit/s", "each way, each machine"),
            (
                "Lock-step",
                seconds_text(lock_step.measured_s),
                f"{seconds_text(lock_step.variant.simulation.step_s)} predicted",
            ),
            (
                micro.variant.name.capitalize(),
                seconds_text(micro.measured_s),
                f"{seconds_text(micro.variant.simulation.step_s)} predicted",
            ),
            ("Furthest off", percent_text(found.off), "of the measured step"),
        ]
    )
    columns = [Column(name, number=i > 1) for i, name in enumerate(COLUMNS)]
    rows = [Row(cells(row, found), best=row is micro) for row in found.rows]
    body = header(f"{asked.spec.model} on an emulated cluster", _verdict(found)) + key
    body += card("Steps", "", table(columns, rows) + notes(promise_lines(found)))
    body += card("How it was measured", "", notes(conditions(found)))
    for row in found.rows[1:]:
        title = f"Predicted step, {row.variant.name}"
        body += card(title, "Compute above, sends below.", gantt(row.variant.placement, standalone=False), scroll=True)
    return page("cutset: emulated cluster", body)


def _verdict(found: Found) -> str:
    return (
        f"{found.micro.variant.name} are {found.gain:.2f} times as fast as lock-step, "
        f"which is {found.alone.measured_s / found.lock_step.measured_s:.2f} times as fast as one machine."
    )
