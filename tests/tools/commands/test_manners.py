"""The help of the command, its errors for programs, and what it does where nobody takes its output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import USAGE, Cutset, refused
from places import USER_MODELS

from cutset.tools.commands.cli import cli

TASK = f"{USER_MODELS / 'good.py'}:task"
PLAN = ["plan", TASK, "--cluster", "desktop"]


def test_the_help_lists_every_command_with_a_whole_sentence(cutset: Cutset) -> None:
    text = cutset("--help").out
    listed = [line.split(maxsplit=1) for line in text.partition("First steps:")[2].splitlines() if line[:2] == "  "]
    commands = {words[0]: words[1] for words in listed if words[0] in cli.commands}
    assert set(commands) == set(cli.commands)
    assert all(sentence.endswith(".") and not sentence.endswith("..") for sentence in commands.values())
    assert "cutset plan mine.py:task --machines 2 -o cut.json" in text


def test_errors_are_json_where_results_are(cutset: Cutset, tmp_path: Path) -> None:
    for words, code, fix in (
        (("check", tmp_path / "none.json"), "E331", ""),
        (("plan", TASK, "--machines", 0), "E201", "1 to 4096"),
        (("plan", TASK, "--no-such-option"), "usage", "cutset plan --help"),
        (("no-such-command",), "usage", "--help"),
    ):
        ended = cutset(*words, "--json")
        assert ended.code != 0
        assert ended.out == ""
        error = json.loads(ended.err)["error"]
        assert error["code"] == code
        assert fix in error["facts"] + error["fix"]


def test_an_option_in_the_place_of_a_value_is_named(cutset: Cutset, tmp_path: Path) -> None:
    for words in (("train", TASK, "--resume", "--out", tmp_path), ("plan", TASK, "--cluster", "--html", "cut.html")):
        refused(cutset(*words), USAGE, "E233", f"{words[2]} is followed by {words[3]}", f"{words[2]} VALUE")
    refused(cutset("show", "--", "--cut.json"), 3, "E331", "--cut.json")


def test_weights_that_are_not_there_are_found_before_any_work(
    cutset: Cutset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cutset.tools.evaluation.evaluate._capture", None)  # which nobody calls
    refused(cutset("eval", TASK), 8, "E801", "there is no runs/last", "--checkpoint")
    refused(cutset("eval", TASK, "--checkpoint", "net.safetensors"), 8, "E801", "there is no net.safetensors")


@pytest.mark.parametrize(("typed", "offered"), [("cutset wat", "watch"), ("cutset train --meth", "--method")])
@pytest.mark.run
def test_shells_complete_commands_and_options(typed: str, offered: str) -> None:
    for shell in ("bash", "zsh", "fish"):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_CUTSET_COMPLETE": f"{shell}_complete"}
        if shell == "fish":
            words["COMP_CWORD"] = typed.rpartition(" ")[2]
        done = subprocess.run(
            [Path(sys.executable).with_name("cutset")], env={**os.environ, **words}, capture_output=True, check=True
        )
        assert offered in done.stdout.decode()


@pytest.mark.parametrize("arguments", [["schema"], PLAN], ids=["click", "rich"])
@pytest.mark.run
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    """As in `cutset schema | head -1`."""
    command = [str(Path(sys.executable).with_name("cutset")), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


@pytest.mark.parametrize("arguments", [["schema"], ["--version"], PLAN])
@pytest.mark.run
def test_a_full_disk_where_the_output_goes_is_an_error_in_words(arguments: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("cutset")), *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == USAGE
    assert done.stderr == (
        "error E222: what the command prints cannot be written: No space left on device\n"
        "  fix: send it to where there is room\n"
    )
