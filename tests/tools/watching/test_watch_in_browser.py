"""The page of a run in a real browser: it changes, it connects again, and a wrong address shows nothing."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import open_browser
from page_checks import WIDTHS, find_axe_violations, find_label_faults
from watched_runs import Clock, begin_run, make_run_folder, worker_status

from cutset.partition.placement.placement_file import Placement
from cutset.tools.run_folder import PLACEMENT
from cutset.tools.run_listener import LossReport, RolesReport, StepReport
from cutset.tools.watching.run_follower import RunFollower
from cutset.tools.watching.watch_server import WatchServer


@pytest.mark.run
def test_a_run_is_seen_as_it_goes_on(tmp_path: Path) -> None:
    folder, clock = make_run_folder(tmp_path / "run"), Clock()
    file = begin_run(folder, clock)
    with open_browser(tmp_path / "profile") as browser:
        with WatchServer(RunFollower(folder, now=clock), folder) as server:
            browser.open(server.address)
            browser.wait_for(lambda: "digits by ssp" in browser.text(), "the page has no title")
            for number in range(1, 4):
                clock.now += 2
                file.on_step(StepReport("ssp", number, 9, 0.5 / number, 8 * number, 2.0 * number))
                file.on_roles(RolesReport("ssp", {"worker-0.0": worker_status(clock.now, number, peers=number * 1.0)}))
                server.update()
                browser.wait_for(lambda n=number: f"step {n}" in browser.text(), "the page does not change")  # type: ignore[misc]
            browser.wait_for(lambda: "computes 50 %" in browser.text(), "who computes is not shown")
            busy = browser.run("return document.getElementById('map').style.getPropertyValue('--busy0')")
            assert float(busy) == pytest.approx(0.25 + 0.75 * 0.5)
            assert browser.run("return document.querySelectorAll('svg.figure').length") >= 2
            where = urlsplit(server.address)
        browser.wait_for(lambda: "Not connected" in browser.text(), "a lost connection is not shown")
        file.on_machine_lost(LossReport("replica 1", "killed"))
        token = where.path.strip("/")
        with WatchServer(RunFollower(folder, now=clock), folder, where.port or 0, token=token) as server:
            browser.wait_for(lambda: "lost: replica 1; killed" in browser.text(), "the page does not connect again")
            browser.wait_for(lambda: "Not connected" not in browser.text(), "it says that it is not connected")
            assert [one for one in browser.errors() if "events" not in one] == []
            browser.open(server.address.replace(token, "x" * len(token)))
            assert "digits" not in browser.text()
            assert "404" in browser.text()


@pytest.mark.run
def test_everything_on_it_can_be_read_on_screens_and_phones_in_light_and_dark(
    tmp_path: Path, transformer: Callable[[int, int], Placement]
) -> None:
    folder, clock = make_run_folder(tmp_path / "run"), Clock()
    transformer(4, 9).save(folder / PLACEMENT)
    file = begin_run(folder, clock)
    for number in range(1, 4):
        clock.now += 2
        statuses = {f"worker-{n}.0": worker_status(clock.now, number, peers=number * 1.0) for n in range(4)}
        file.on_step(StepReport("ssp", number, 9, 0.5 / number, 8 * number, 2.0 * number))
        file.on_roles(RolesReport("ssp", statuses))
    with (
        WatchServer(RunFollower(folder, now=clock), folder) as server,
        open_browser(tmp_path / "profile") as browser,
    ):
        for width, dark in product(WIDTHS, (False, True)):
            browser.emulate(width, dark=dark)
            browser.open(server.address)
            browser.wait_for(lambda: "computes 50 %" in browser.text(), "who computes is not shown")
            assert find_label_faults(browser) == [], (width, dark)
            background = browser.run("return getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(13, 16, 20)") == dark
            assert browser.errors() == [], "its policy lets it show and do all that it has"
            assert find_axe_violations(browser) == [], (width, dark)


@pytest.mark.run
def test_who_has_the_focus_keeps_it_while_the_page_changes(tmp_path: Path) -> None:
    folder, clock = make_run_folder(tmp_path / "run"), Clock()
    file = begin_run(folder, clock)
    file.on_step(StepReport("ssp", 1, 9, 0.5, 8, 2.0))
    with (
        WatchServer(RunFollower(folder, now=clock), folder) as server,
        open_browser(tmp_path / "profile") as browser,
    ):
        browser.open(server.address)
        browser.wait_for(lambda: browser.run("return document.querySelector('#curves .item')"), "there is no curve")
        browser.run("document.querySelector('#curves .item').focus()")
        for number in (2, 3):
            clock.now += 2
            file.on_step(StepReport("ssp", number, 9, 0.5 / number, 8 * number, 2.0 * number))
            server.update()
            browser.wait_for(lambda n=number: f"step {n}" in browser.text(), "the page does not change")  # type: ignore[misc]
            assert browser.run("return document.activeElement.matches('#curves .item')")
            assert "ends at" in browser.run("return document.getElementById('detail').innerText")
