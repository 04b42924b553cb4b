"""Pages: whole, self-contained, escaped, and with everything that a placement or a run holds."""

from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from cutset.partition.placement.placement_file import Placement, TimelineSpan
from cutset.tools.figures.cut_map import has_repeats
from cutset.tools.figures.learning_curves import (
    average_runs,
    render_accuracy_curves,
    render_loss_curves,
    render_test_loss_curves,
)
from cutset.tools.figures.staleness import render_staleness_histograms
from cutset.tools.report.html import TableColumn, TableRow, render_table
from cutset.tools.report.pages import render_placement_page, render_run_page

VOID = {"meta", "br", "link", "img", "input", "hr"}
NASTY = "<script>alert('1')</script>&\""


class Page(HTMLParser):
    """Reads a page strictly: tags must be balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def check_whole(text: str) -> Page:
    """Balanced tags, one style and script, which its policy knows, unique ids, and nothing fetched from elsewhere."""
    page = Page(text)
    assert page.tags["link"] == page.tags["img"] == 0
    assert page.tags["style"] == page.tags["script"] == 1
    policy = dict(page.attributes)["content"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        assert f"{tag}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy
    assert max(page.ids.values()) == 1
    assert not [value for name, value in page.attributes if name in ("src", "href", "style") or name.startswith("on")]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "@import" not in text
    return page


def test_a_placement_page_is_whole_and_complete(placement: Placement) -> None:
    page = check_whole(render_placement_page(placement))
    assert {"cut-title", "cut-narrow-title", "load-title", "load-narrow-title", "traffic-title"} <= set(page.ids)
    assert ("cut-whole-title" in page.ids) == has_repeats(placement)
    assert placement.verdict in page.text
    for name in [score.name for score in placement.candidates] + [machine.name for machine in placement.machines]:
        assert name in page.text
    text = page.text
    for tensor in {item.tensor for item in placement.predicted.traffic}:
        assert tensor in text
    assert page.words.count("winner") == 1
    assert page.text.index("winner") > page.text.index(placement.winner)


def test_a_run_page_has_the_result_first(mlp: Placement, result: dict[str, Any]) -> None:
    page = check_whole(render_run_page(mlp, result))
    for words in (
        "one process",
        "97.2 %",
        "96.6 %",
        "1.04 / 4",
        "148 KiB",
        "7.9 s to 95 %",
        result["notes"][0],
        "adagrad",
    ):
        assert words in page.text
    assert page.text.index("samples/s") < page.text.index("Cut map")
    for worker in result["staleness"]:
        assert ("data-worker", worker) in page.attributes
    assert [value for name, value in page.attributes if name == "data-row"] == 4 * [
        row["name"] for row in result["rows"]
    ]


def test_a_run_page_shows_the_measured_step_and_why_it_took_so_long(mlp: Placement, result: dict[str, Any]) -> None:
    spans = [msgspec.to_builtins(TimelineSpan(0, "wait", NASTY, 0.0, 0.2))]
    typical = {"step": 7, "of": 5, "step_s": 0.25, "timeline": spans}
    result["measured"] = {"step": typical, "time": {}, "findings": [f"A step took 250 ms. {NASTY}"]}
    page = check_whole(render_run_page(mlp, result))
    assert "A step, predicted and measured" in page.text
    assert "step 7, the median of 5" in page.text
    assert f"A step took 250 ms. {NASTY}" in page.text
    assert "Measured: 250 ms" in page.text
    assert "Predicted step" not in page.text


def test_a_run_of_one_process_has_a_page(result: dict[str, Any]) -> None:
    alone = result | {"rows": result["rows"][:1], "staleness": {}, "links": [], "notes": []}
    page = check_whole(render_run_page(None, alone))
    assert "Staleness" not in page.text
    assert "Cut map" not in page.text


def test_a_target_that_was_missed_is_said(mlp: Placement, result: dict[str, Any]) -> None:
    result["rows"][1]["time_to_target_s"] = None
    assert "not reached" in Page(render_run_page(mlp, result)).text


def test_everything_that_comes_in_is_escaped(mlp: Placement, result: dict[str, Any]) -> None:
    machines = [msgspec.structs.replace(machine, name=NASTY) for machine in mlp.machines]
    scores = [msgspec.structs.replace(score, name=NASTY) for score in mlp.candidates]
    bad = msgspec.structs.replace(
        mlp, model=NASTY, machines=machines, candidates=scores, verdict=NASTY, winner=NASTY, versions={NASTY: NASTY}
    )
    row = result["rows"][0] | {"name": NASTY}
    links = [{"source": NASTY, "target": "shard-0", "bytes": 1, "messages": 1}]
    run = {"task": NASTY, "verdict": NASTY, "notes": [NASTY], "rows": [row], "links": links}
    run |= {"staleness": {NASTY: {"0": 1}}, "settings": {NASTY: NASTY}, "versions": {NASTY: NASTY}}
    check_whole(render_placement_page(bad))
    page = check_whole(render_run_page(bad, run))
    assert page.text.count(NASTY) > 10


def test_losses_that_are_not_numbers_leave_a_gap(mlp: Placement, result: dict[str, Any]) -> None:
    result["rows"][1]["losses"] = [[1.0, 2.0], [2.0, float("nan")], [3.0, float("inf")]]
    result["rows"][1]["curve"] = []
    check_whole(render_run_page(mlp, result))
    assert "nan" not in render_loss_curves(result)
    assert "ends at 2" in render_loss_curves(result)


def test_a_curve_that_never_rises_stays_in_view(result: dict[str, Any]) -> None:
    flat = [{"seconds": float(i), "samples": i, "test_accuracy": 0.1} for i in range(5)]
    result["rows"][1]["curve"] = flat
    svg = render_accuracy_curves(result)
    assert "downpour 2 machines x 2 replicas ends at 10.0 %" in svg
    assert ">0 %<" in svg, "the axis begins low enough"


def test_a_task_without_an_accuracy_has_a_curve_of_its_test_loss(mlp: Placement, result: dict[str, Any]) -> None:
    assert render_test_loss_curves(result) == ""
    for row in result["rows"]:
        row["test_accuracy"], row["metrics"] = None, {"perplexity": 12.5}
        for point in row["curve"]:
            point["test_accuracy"] = None
    assert render_accuracy_curves(result) == ""
    assert "downpour 2 machines x 2 replicas ends at" in render_test_loss_curves(result)
    page = render_run_page(mlp, result)
    check_whole(page)
    assert "perplexity" in page
    assert "12.5" in page
    assert "test accuracy" not in page


def test_many_losses_become_few_means() -> None:
    points = [(float(i), float(i % 2)) for i in range(1000)]
    few = average_runs(points)
    assert len(few) <= 140
    assert sum(y for _, y in few) / len(few) == pytest.approx(0.5)
    assert average_runs([]) == []
    assert average_runs(points[:3]) == points[:3]


def test_no_data_means_no_figure(result: dict[str, Any]) -> None:
    bare = {"rows": [{"name": "x", "curve": [], "losses": []}]}
    assert render_accuracy_curves(bare) == render_loss_curves(bare) == render_staleness_histograms({}) == ""


def test_staleness_is_shown_per_worker_and_in_words() -> None:
    svg = render_staleness_histograms({"worker-1": {"0": 3, "10": 1}, "worker-0": {"100": 4}})
    assert svg.index('data-worker="worker-0"') < svg.index('data-worker="worker-1"')
    assert "worker-1: mean 2.50, max 10" in svg
    assert "staleness 8–11: 1 pushes, 25 %" in svg


def test_a_table_marks_rows_and_cells() -> None:
    columns = [TableColumn("name"), TableColumn("size", number=True)]
    html = render_table(columns, [TableRow(("a", "1"), tag="best", best=True, bad=(1,))])
    assert '<tr role="row" class="best"><th scope="row" role="rowheader">a<span class="tag">best</span></th>' in html
    assert '<td role="cell" data-label="size" class="number bad">1</td>' in html
