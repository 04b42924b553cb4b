"""The help of the command, and its errors for programs."""

import json
from pathlib import Path

from command_line import Cutset
from places import USER_MODELS

from cutset.tools.commands.cli import cli

TASK = f"{USER_MODELS / 'good.py'}:task"


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
