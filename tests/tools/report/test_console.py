"""Terminal output: complete tables, progress as a bar or as plain lines, errors without a traceback."""

import io
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cutset.errors import BadInput
from cutset.partition.placement.placement_file import Placement
from cutset.tools.report.console import Progress, make_console, print_error, print_placement, print_result


def plain(width: int = 160) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, highlight=False), out


def terminal(width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=True, highlight=False), out


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("width", [40, 80, 300])
def test_the_result_table_cuts_no_number(result: dict[str, Any], width: int) -> None:
    console, out = plain(width)
    print_result(result, console=console)
    text = out.getvalue()
    for words in (
        "one process",
        "downpour 2 machines x 2 replicas",
        "97.2 %",
        "96.6 %",
        "1.04 / 4",
        "148 KiB",
        "4.1 s to 95 %",
    ):
        assert words in text
    assert "…" not in text
    flat = " ".join(text.split())
    assert result["verdict"] in flat
    assert result["notes"][0] in flat


def test_why_a_step_took_so_long_is_said_where_it_was_measured(result: dict[str, Any]) -> None:
    console, out = plain(300)
    print_result(result | {"measured": {"findings": ["A step took 3 ms.", "m0 waited [40 %]."]}}, console=console)
    lines = out.getvalue().splitlines()
    at = lines.index(result["verdict"])
    assert lines[at + 1 : at + 3] == ["A step took 3 ms.", "m0 waited [40 %]."]
    assert lines[at + 3].startswith("note: ")


def test_a_wide_result_table_has_a_line_for_each_run(result: dict[str, Any]) -> None:
    console, out = plain(300)
    print_result(result, console=console)
    line = next(line for line in out.getvalue().splitlines() if line.startswith("one process"))
    assert "97.2 %" in line
    assert "1915" in line


def test_the_summary_of_a_placement_names_everything(tiles: Placement) -> None:
    console, out = plain()
    print_placement(tiles, console=console)
    text = out.getvalue()
    for machine in tiles.machines:
        assert machine.name in text
    for score in tiles.candidates:
        assert score.name in text
    for item in tiles.predicted.traffic:
        assert item.tensor in text
    assert tiles.verdict in text
    assert f"* {tiles.winner}" in text
    assert "3 tensors cross, 700 KiB forward" in text


def test_a_faster_candidate_that_was_not_chosen_is_explained(tiles: Placement) -> None:
    (chosen,) = [score for score in tiles.candidates if score.name == tiles.winner]
    for quicker, explained in ((0.98, False), (0.5, True)):
        idle = msgspec.structs.replace(chosen, name="idle", min_load=0.0, step_s=quicker * tiles.predicted.step_s)
        console, out = plain()
        print_placement(msgspec.structs.replace(tiles, candidates=[chosen, idle]), console=console)
        end = " among those with work for every machine" if explained else ""
        assert f"* chosen: {tiles.winner}, for its time{end}\n" in out.getvalue()


def test_markup_in_names_is_text(result: dict[str, Any]) -> None:
    console, out = terminal(200)
    result["rows"][0]["name"] = "[red]x[/red]"
    print_result(result, console=console)
    assert "[red]x[/red]" in out.getvalue()


def test_plain_progress_prints_a_line_each_tenth() -> None:
    console, out = plain()
    with Progress("digits", 1000, console=console, clock=Clock()) as progress:
        for done in range(0, 1001, 4):
            progress.update(done, "loss 0.5")
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[-1] == "digits: 100 %, 1000 of 1000, loss 0.5"


def test_slow_progress_prints_a_line_every_few_seconds() -> None:
    console, out = plain()
    clock = Clock()
    with Progress("digits", 1000, console=console, clock=clock, every_s=5.0) as progress:
        for done in range(60):
            progress.update(done)
            clock.now += 1.0
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + 59 // 5 + 1, "at first, every five seconds, and at the end"
    assert lines[-1].endswith("59 of 1000")


def test_progress_without_updates_prints_nothing() -> None:
    console, out = plain()
    with Progress("digits", 0, console=console) as progress:
        assert repr(progress) == "Progress('digits', 0 of 1)"
    assert out.getvalue() == ""


def test_progress_on_a_terminal_is_a_bar() -> None:
    console, out = terminal()
    with Progress("digits [x]", 100, console=console) as progress:
        progress.update(50, "loss 0.5")
        progress.update(100, "loss 0.4")
    text = out.getvalue()
    assert "━" in text
    assert "100%" in text
    assert "digits [x]" in text
    assert text.endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor comes back"


def test_a_failing_run_ends_the_bar_and_the_error_goes_on() -> None:
    console, out = terminal()
    with pytest.raises(BadInput), Progress("digits", 100, console=console):
        raise BadInput("E301", "no such model")
    assert "\x1b[?25h" in out.getvalue()


def test_an_error_is_code_facts_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    long = "cutset train file.py:factory " + " ".join(f"--option-{i} value" for i in range(20))
    print_error(BadInput("E301", "the model [net] is missing", fix=long))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error E301: the model [net] is missing\n  fix: {long}\n"


def test_an_error_without_a_fix_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(BadInput("E302", "empty"))
    assert capsys.readouterr().err == "error E302: empty\n"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BadInput("E301", "no such model")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console, out = terminal()
    print_error(error, console=console)
    assert "\x1b[1;31m" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    console, out = terminal()
    print_error(error, console=console)
    assert "31m" not in out.getvalue()


def test_without_a_terminal_lines_are_wide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert make_console().width == 160
    assert make_console(stderr=True).stderr


def test_output_and_pictures_load_no_torch() -> None:
    code = (
        "import sys, cutset.tools.report.console, cutset.tools.report.pages, cutset.partition.placement.placement_file;"
        "print([name for name in ('torch', 'numpy', 'zmq', 'pymetis') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60)
    assert found.stdout.strip() == "[]"
