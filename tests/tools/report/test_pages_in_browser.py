"""Pages in a real browser: labels are legible, details by pointer and keys, search, zoom, and what axe-core says."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browser import Browser, open_browser
from marking import with_slow
from page_checks import WIDTHS, find_axe_violations, find_label_faults, read_axe

from cutset.partition.placement.placement_file import Placement, TimelineSpan
from cutset.tools.report.pages import render_placement_page, render_run_page

TAB, ENTER, ESCAPE, LEFT, RIGHT = "\ue004", "\ue007", "\ue00c", "\ue012", "\ue014"
OPEN_ALL = (
    "for (const one of document.querySelectorAll('details')) one.open = true;"
    "[...document.querySelectorAll('.item')].find(one => one.getClientRects().length).focus()"
)
DETAILS = "const panel = document.getElementById('detail'); return panel.hidden ? null : panel.innerText"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with open_browser(tmp_path / "profile") as opened:
        yield opened


def open_page(browser: Browser, page: str, folder: Path) -> None:
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path.as_uri())


def add_step(placement: Placement, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a run with a recorded step, and with what shards say."""
    spans = [msgspec.to_builtins(span) for span in placement.predicted.timeline]
    spans += [msgspec.to_builtins(TimelineSpan(0, "wait", "data", 0.0, 0.2))]
    typical = {"step": 7, "of": 5, "step_s": 0.25, "timeline": spans}
    shards = [
        {"name": f"shard-{i}", "staleness": result["staleness"], "pushes": 9, "updates": 9, "late": 0, "duplicates": 0}
        | {"rate": 0.1, "clock_gap": 1, "bytes_in": 10_000, "bytes_out": 10_000}
        for i in range(2)
    ]
    worker = {"steps": 9, "fetches": 9, "pushes": 9, "fetch_s": 0.3, "push_s": 0.1, "blocked": 0.2, "seconds": 2.0}
    workers = [worker | {"name": name, "skew_mean": 0.5, "skew_max": 2} for name in result["staleness"]]
    served = {"workers": workers, "shards": shards}
    measured = {"step": typical, "time": {}, "findings": ["A step took 250 ms."]}
    return result | {"measured": measured, "server_statistics": served}


@pytest.mark.run
def test_no_label_of_a_cut_is_on_another_or_on_a_line(placement: Placement, browser: Browser, tmp_path: Path) -> None:
    for width in WIDTHS:
        browser.emulate(width)
        open_page(browser, render_placement_page(placement), tmp_path)
        browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
        assert find_label_faults(browser) == [], width
        assert browser.errors() == [], "its policy lets the page show and do all that it has"


@pytest.mark.run
def test_long_names_are_cut_to_fit(tiles: Placement, result: dict[str, Any], browser: Browser, tmp_path: Path) -> None:
    name = "WWW-a-machine-with-a-name-that-goes-on-and-on-and-on"
    machines = [msgspec.structs.replace(machine, name=f"{i}{name}") for i, machine in enumerate(tiles.machines)]
    ops = [msgspec.structs.replace(op, module=f"{name}.{op.module}", op=f"aten.{name}.default") for op in tiles.ops]
    long = msgspec.structs.replace(tiles, model=name * 3, machines=machines, ops=ops)
    result["rows"][1]["name"] = name * 2
    for width, page in product(WIDTHS, (render_placement_page(long), render_run_page(long, add_step(long, result)))):
        browser.emulate(width)
        open_page(browser, page, tmp_path)
        assert find_label_faults(browser) == [], width


@pytest.mark.run
def test_no_label_of_a_run_is_on_another_or_on_a_line(
    mlp: Placement, result: dict[str, Any], browser: Browser, tmp_path: Path
) -> None:
    for width in WIDTHS:
        browser.emulate(width)
        open_page(browser, render_run_page(mlp, add_step(mlp, result)), tmp_path)
        assert find_label_faults(browser) == [], width


@pytest.mark.run
def test_the_check_of_labels_finds_faults(mlp: Placement, browser: Browser, tmp_path: Path) -> None:
    """A label that is moved onto another, one onto a line, one out of the picture, one that is small."""
    browser.emulate(WIDTHS[0])
    open_page(browser, render_placement_page(mlp), tmp_path)
    browser.run(
        "const texts = [...document.querySelectorAll('.wide svg .node > text')];"
        "texts[1].setAttribute('y', texts[0].getAttribute('y')); texts[3].style.fontSize = '8px';"
        "texts[4].setAttribute('x', -9);"
        "const line = document.querySelector('.wide svg .casing').getPointAtLength(9);"
        "texts[2].setAttribute('x', line.x - 9); texts[2].setAttribute('y', line.y + 4);"
    )
    found = " ".join(find_label_faults(browser))
    assert all(words in found for words in ("on a label", "small", "cut off", "on a line"))


@pytest.mark.run
@pytest.mark.parametrize("with_others", with_slow([False], [True]))
def test_axe_finds_nothing_serious(
    mlp: Placement,
    transformer: Callable[[int, int], Placement],
    result: dict[str, Any],
    browser: Browser,
    tmp_path: Path,
    with_others: bool,
) -> None:
    """On screens and phones, in light and dark: each page on both and in both, and with the others all of them."""
    pages = (render_placement_page(transformer(6, 16)), render_run_page(mlp, add_step(mlp, result)))
    for (i, page), (j, width), dark in product(enumerate(pages), enumerate(WIDTHS), (False, True)):
        if not with_others and (i + j) % 2 != dark:
            continue
        browser.emulate(width, dark=dark)
        open_page(browser, page, tmp_path)
        background = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(13, 16, 20)") == dark
        browser.run(OPEN_ALL)
        assert browser.run(DETAILS)
        assert find_axe_violations(browser) == [], (width, dark)


@pytest.mark.run
def test_axe_would_find_what_is_serious(mlp: Placement, browser: Browser, tmp_path: Path) -> None:
    read_axe()
    browser.emulate(WIDTHS[0])
    open_page(browser, render_placement_page(mlp), tmp_path)
    browser.run(
        "document.querySelector('.lead').style.color = '#ccc'; document.querySelector('.item title').remove();"
        "document.querySelector('.item').removeAttribute('aria-label')"
    )
    assert [found.split(":")[0] for found in find_axe_violations(browser)] == ["color-contrast", "svg-img-alt"]


@pytest.mark.run
def test_keys_reach_every_part_of_a_picture_and_its_details(mlp: Placement, browser: Browser, tmp_path: Path) -> None:
    browser.emulate(WIDTHS[0])
    open_page(browser, render_placement_page(mlp), tmp_path)
    for _ in range(20):
        browser.press(TAB)
        if browser.run("return document.activeElement.matches('svg.figure')"):
            break
    assert "Arrow keys" in browser.run(DETAILS)
    count = browser.run("return document.activeElement.querySelectorAll('.item').length")
    seen = []
    for _ in range(count):
        browser.press(RIGHT)
        assert browser.run("return document.activeElement.matches('.item:focus-visible')")
        stroke = browser.run("return getComputedStyle(document.activeElement.children[1]).strokeWidth")
        assert stroke == "3px", "who has the focus is seen"
        seen.append(browser.run(DETAILS))
    assert all(any(words.startswith(f"{op.name} (") for words in seen) for op in mlp.ops)
    assert any("crosses: " in words for words in seen)
    browser.press(ENTER)
    assert browser.run(DETAILS) is None
    browser.press(" ")
    assert browser.run(DETAILS) == seen[-1]
    browser.press(ESCAPE)
    assert browser.run(DETAILS) is None
    browser.press(LEFT, "+")
    assert browser.run("return document.activeElement.closest('svg').getBoundingClientRect().width") == 1400
    browser.press("0")
    assert browser.run("return document.activeElement.closest('svg').getBoundingClientRect().width") == 1120


@pytest.mark.run
def test_a_tap_shows_details_and_another_one_beside_it_hides_them(
    mlp: Placement, browser: Browser, tmp_path: Path
) -> None:
    browser.emulate(WIDTHS[1])
    open_page(browser, render_placement_page(mlp), tmp_path)
    at = browser.run(
        "const shown = one => one.getClientRects().length;"
        "const box = [...document.querySelectorAll('[data-op=\"layers.0\"]')].find(shown);"
        "box.scrollIntoView({block: 'center'}); const {x, y} = box.getBoundingClientRect(); return [x + 6, y + 6]"
    )
    tap(browser, *at)
    assert browser.run(DETAILS).startswith("layers.0 (aten.linear.default)")
    right = browser.run("return document.querySelector('#detail span').getBoundingClientRect().right")
    assert right <= WIDTHS[1]
    tap(browser, 3, 3)
    assert browser.run(DETAILS) is None


def tap(browser: Browser, x: float, y: float) -> None:
    steps = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
    steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
    touch = {"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": steps}
    browser.call("actions", actions=[touch])


@pytest.mark.run
@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_an_operator_of_a_layer_that_is_folded(
    transformer: Callable[[int, int], Placement], width: int, browser: Browser, tmp_path: Path
) -> None:
    browser.emulate(width)
    open_page(browser, render_placement_page(transformer(48, 4)), tmp_path)
    assert "linear × 4" in browser.run("return document.querySelector('svg.figure').textContent")
    assert browser.run("return document.body.scrollHeight") < 12_000, "48 layers are not drawn one by one"
    browser.run("document.querySelector('input[type=search]').focus()")
    browser.press(*"31.qkv")
    assert browser.run("return document.querySelector('.tools output').value") == "1 operator; Enter shows the next"
    browser.press(ENTER)
    assert browser.run(DETAILS).startswith("layers.31.qkv (")
    found = browser.run(
        "const box = document.querySelector('.unfold .hit').getBoundingClientRect();"
        "return [box.left > 0, box.right < innerWidth, box.top > 0, box.bottom < innerHeight]"
    )
    assert found == [True] * 4, "it is scrolled into view"
    browser.press("x")
    assert browser.run("return document.querySelector('.tools output').value") == "0 operators"


@pytest.mark.run
@pytest.mark.parametrize("width", WIDTHS)
def test_a_folded_layer_unfolds(
    transformer: Callable[[int, int], Placement], width: int, browser: Browser, tmp_path: Path
) -> None:
    """By Enter, and by the button beside the details."""
    for unfold in (
        lambda: browser.press(ENTER),
        lambda: browser.run("document.querySelector('#detail button').click()"),
    ):
        browser.emulate(width)
        open_page(browser, render_placement_page(transformer(48, 4)), tmp_path)
        folded = browser.run(
            "const all = [...document.querySelectorAll('[data-copies] [data-op]')];"
            "const folded = all.find(one => one.getClientRects().length); folded.focus(); return folded.dataset.op"
        )
        assert "and 4" in browser.run(DETAILS)
        unfold()
        assert browser.run("return document.activeElement.dataset.op") == folded
        assert browser.run("return document.activeElement.closest('details.unfold').open")
        assert "that are alike" not in browser.run(DETAILS)


@pytest.mark.run
def test_names_of_a_model_are_not_markup(mlp: Placement, browser: Browser, tmp_path: Path) -> None:
    nasty = "<img src=x onerror=\"document.title='caught'\">"
    browser.emulate(WIDTHS[0])
    first = msgspec.structs.replace(mlp.ops[0], name=nasty, module=nasty)
    open_page(browser, render_placement_page(msgspec.structs.replace(mlp, ops=[first, *mlp.ops[1:]])), tmp_path)
    browser.run("document.querySelector('[data-op^=\"<img\"]').focus()")
    assert browser.run(DETAILS).startswith(nasty)
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") != "caught"
