"""The page of a run: its parts as markup, of which those that have changed are sent again, and the script in it."""

import json
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from ...errors import CutsetError
from ...partition.placement.placement_file import Placement, load
from ..analysis.measured_step import MeasuredStep
from ..figures.gantt import LEGEND, render_gantt
from ..figures.learning_curves import render_accuracy_curves, render_loss_curves, render_test_loss_curves
from ..figures.load_and_traffic import render_link_matrix
from ..figures.theme import FIGURE_CSS, MACHINE_COLOURS, PAGE_CSS
from ..report.cut_map_card import render_cut_map_card
from ..report.html import (
    DETAIL_PANEL,
    TableColumn,
    TableRow,
    render_card,
    render_facts,
    render_figures,
    render_head,
    render_notes,
    render_page,
    render_table,
)
from ..report.page_script import PAGE_SCRIPT
from ..run_folder import PLACEMENT, RESULT
from ..run_listener import MAX_LINKED
from ..units import NONE, format_count, format_percent, format_seconds
from .activity_bars import find_busy, render_activity
from .role_rows import COLUMNS, describe_step, list_rows
from .run_follower import RunFollower
from .run_view import RunView

TITLE = "title"  # also a part, of the heading
PARTS = ("state", "facts", "map", "curves", "activity", "processes", "links", "step", "happenings")
_ACTIVITY = (
    "Of the last seconds. A worker waits for data that is read, for leases of batches, for peers that send what they "
    "computed, and for shards that send parameters or take gradients."
)
BUSY = "busy"  # beside the parts: by machine

_CSS = ".off{color:var(--bad);font-weight:600}\nsection.card:empty{display:none}\n" + "".join(
    f"#map svg .f{i}{{fill-opacity:var(--busy{i},1)}}\n" for i in range(MACHINE_COLOURS)
)

# Replaces parts of the page by what the server sends; EventSource connects again by itself, and is sent all. Who
# watches may sit on a machine that trains: nothing moves between two events, and the map changes in steps.
_SCRIPT = """
const source = new EventSource('events');
const link = document.getElementById('link'), map = document.getElementById('map');
source.onopen = () => { link.textContent = ''; };
source.onerror = () => { link.textContent = 'Not connected; trying again.'; };
source.onmessage = event => {
  const parts = JSON.parse(event.data);
  for (const [machine, share] of Object.entries(parts.busy || {})) {
    const shade = (0.25 + 0.75 * Math.round(20 * share) / 20).toFixed(4), name = '--busy' + machine;
    if (map.style.getPropertyValue(name) !== shade) { map.style.setProperty(name, shade); }
  }
  const places = Object.entries(parts).map(([name, markup]) => [document.getElementById(name), markup]);
  replaceParts(places.filter(([place]) => place));
};
"""


def render_watch_page(title: str, nonce: str) -> str:
    """Render the page without its parts, which come as events. nonce: by which its style and script are known."""
    places = "".join(f'<div id="{name}"></div>\n' for name in PARTS)
    return (
        f"{render_head(f'cutset: {title}')}"
        f'<style nonce="{nonce}">\n{FIGURE_CSS}{PAGE_CSS}{_CSS}</style>\n</head>\n'
        f"<body>\n<main>\n{_render_top(title)}{places}</main>\n{DETAIL_PANEL}"
        f'<script nonce="{nonce}">{PAGE_SCRIPT}{_SCRIPT}</script>\n</body>\n</html>\n'
    )


def render_snapshot(follower: RunFollower, folder: Path) -> str:
    """Render the page with its parts as they are now, as a file that needs nothing else and does not change."""
    parts = PageParts(folder).render(follower)
    busy = "".join(f"--{BUSY}{machine}:{0.25 + 0.75 * share:.2f};" for machine, share in parts[BUSY].items())
    places = "".join(f'<div id="{name}">{parts[name]}</div>\n' for name in PARTS)
    title = _choose_title(follower.view, folder)
    return render_page(f"cutset: {title}", _render_top(title) + places, css=f"{_CSS}:root{{{busy}}}\n")


def _render_top(title: str) -> str:
    return (
        f'<header><div class="brand">cutset</div><h1 id="{TITLE}">{escape(title)}</h1>'
        '<p class="off" id="link" role="status"></p></header>\n'
    )


class PageParts:
    """The parts of the page of a run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, str]] = {}  # what a part was made of, when that was written, and the part

    def render(self, follower: RunFollower) -> dict[str, Any]:
        """Return all parts by their name in the page, as they are now, and how busy machines are."""
        view = follower.view
        state, progress = follower.describe()
        parts = {
            TITLE: escape(_choose_title(view, self._folder)),
            "state": f'<p class="verdict">{escape(state)}</p><p class="lead">{escape(progress)}</p>',
            "facts": _render_key_facts(view),
            "map": self._render_file(PLACEMENT, _render_map),
            "curves": _render_curves(view),
            "activity": render_card(
                "Who computes, who waits",
                _ACTIVITY,
                render_figures(partial(render_activity, view)),
            ),
            "processes": _render_processes(view),
            "links": _render_links(view),
            "step": "" if follower.is_running else self._render_file(RESULT, self._render_measured),
            "happenings": _render_happenings(view),
        }
        return {**parts, BUSY: find_busy(view)}

    def _render_file(self, name: str, render: Any) -> str:
        """Return a part that is made of a file of the run, made anew where that has changed; "" where there is none."""
        path = self._folder / name
        try:
            written = path.stat().st_mtime_ns
        except FileNotFoundError:
            return ""
        if self._files.get(name, (0, ""))[0] != written:
            try:
                self._files[name] = written, render(path)
            except (CutsetError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                self._files[name] = written, render_notes([f"{path} cannot be shown: {error}"])
        return self._files[name][1]

    def _render_measured(self, path: Path) -> str:
        """Return the step that was recorded, beside the predicted one."""
        measured = json.loads(path.read_text()).get("measured")
        if measured is None or not (self._folder / PLACEMENT).is_file():
            return ""
        step = msgspec.convert(measured["step"], MeasuredStep)
        gantt = render_figures(partial(render_gantt, load(self._folder / PLACEMENT), step))
        return render_card("The step that was recorded", LEGEND, gantt + render_notes(measured["findings"]))


def _choose_title(view: RunView, folder: Path) -> str:
    return f"{view.facts['task']} by {view.facts['method']}" if view.facts else folder.resolve().name


def _render_map(path: Path) -> str:
    placement: Placement = load(path)
    lead = f"{placement.verdict} A machine is drawn paler the more it waits."
    return render_cut_map_card(placement, lead)


def _render_key_facts(view: RunView) -> str:
    curve = view.current
    if curve is None or not curve.step:
        return ""
    step, score = curve.step, curve.score
    took = format_seconds(step.get("seconds"))
    facts = [("Trained", f"{format_count(step.get('samples'))} samples", f"{describe_step(step)}, {took}")]
    facts.append(("Speed", f"{format_count(step.get('samples_per_s'))}/s", "samples"))
    loss = step.get("loss")
    facts.append(("Loss", NONE if loss is None else f"{loss:.4g}", "of a batch"))
    if score.get("test_accuracy") is not None:
        facts.append(("Test accuracy", format_percent(score["test_accuracy"], digits=1), "at the last evaluation"))
    elif score.get("test_loss") is not None:
        facts.append(("Test loss", f"{score['test_loss']:.4g}", "at the last evaluation"))
    stale = [role.status["staleness"] for role in view.roles.values() if role.status.get("staleness") is not None]
    if stale:
        most = max(stale, key=lambda one: one["mean"])
        facts.append(("Staleness", f"{most['mean']:.2f}", f"mean, at most {most['max']} updates"))
    return render_facts(facts)


def _render_curves(view: RunView) -> str:
    result = view.as_result()
    cards = [
        render_card(title, "", render_figures(partial(draw, result)))
        for title, draw in (
            ("Test accuracy", render_accuracy_curves),
            ("Test loss", render_test_loss_curves),
            ("Loss", render_loss_curves),
        )
    ]
    return f'<div class="pair">{"".join(cards)}</div>' if any(cards) else ""


def _render_processes(view: RunView) -> str:
    rows = [TableRow(row) for row in list_rows(view)]
    columns = [TableColumn(label, number=0 < i < len(COLUMNS) - 1) for i, label in enumerate(COLUMNS)]
    return render_card("Processes", "", render_table(columns, rows)) if rows else ""


def _render_links(view: RunView) -> str:
    """Return the bytes a second between processes, as those that send them count them."""
    links = [
        {"source": name, "target": peer, "bytes": int(rate)}
        for name, role in sorted(view.roles.items())
        for peer, rate in role.link_rates().items()
        if rate >= 1
    ]
    names = {link[end] for link in links for end in ("source", "target")}
    if not links or len(names) > MAX_LINKED:
        return ""
    matrix = render_figures(partial(render_link_matrix, links))
    return render_card("Traffic", "Bytes a second from row to column.", matrix)


def _render_happenings(view: RunView) -> str:
    lines = [f"{_format_time(at)} {words}" for at, words in reversed(view.happenings)]
    return render_card("What happened", "The latest first.", render_notes(lines)) if lines else ""


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
