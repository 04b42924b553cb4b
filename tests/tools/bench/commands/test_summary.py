"""`cutset bench all` writes the page whatever is missing; `cutset bench check` ends as its ratios are."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cutset.errors import UsageError
from cutset.tools.bench.commands.summary import all_command, check_command
from cutset.tools.bench.summary.kept_ratios import KeptRatios, write_kept

SQUARE = "4 4\n2 4\n1 3\n2 4\n3 1\n"  # a graph in METIS' format


def test_the_page_says_what_was_not_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(all_command, ["methods", "graphs", "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0
    data = json.loads((tmp_path / "out" / "bench.json").read_text())
    troubles = {one["name"]: one["trouble"] for one in data["benchmarks"]}
    assert troubles == {"graphs": "not measured without --graphs", "methods": "not measured without --data"}


@pytest.mark.run
def test_a_benchmark_runs_in_a_process_of_its_own_and_a_broken_one_is_named(tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    command = ["graphs", "--graphs", str(graphs), "-o", str(tmp_path / "out")]
    assert "E370" in CliRunner().invoke(all_command, command).stdout
    (graphs / "square.graph").write_text(SQUARE)
    done = CliRunner().invoke(all_command, command)
    assert "square.graph, 2 devices, edge cut" in done.stdout
    assert "measured at" in CliRunner().invoke(all_command, command).stderr, "it is measured once"


@pytest.mark.parametrize("names", [[], ["plans"]])
def test_without_kept_ratios_nothing_is_said_to_stand(tmp_path: Path, names: list[str]) -> None:
    write_kept(tmp_path / "kept.json", KeptRatios({}))
    done = CliRunner().invoke(check_command, [str(tmp_path / "kept.json"), *names])
    assert (done.exit_code, "Nothing was compared" in done.stdout) == (1, True)
    assert f"{names[0] if names else 'channel'} has no kept ratios" in done.stdout


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(check_command, [str(tmp_path / "kept.json"), "nothing"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.code == "E286"
