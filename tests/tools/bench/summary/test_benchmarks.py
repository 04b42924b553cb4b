"""Every command of `cutset bench` that has peers is on the page, by names that the command takes."""

import shlex

import click
import pytest

from cutset.errors import UsageError
from cutset.tools.bench.commands.bench import bench
from cutset.tools.bench.summary.benchmark import BenchmarkOptions
from cutset.tools.bench.summary.benchmarks import BENCHMARKS, NAMES, find_benchmarks

# These are in virtual time, which has a page of its own, or are the page itself.
ELSEWHERE = {"against-real", "all", "check", "figure3", "figure4", "figure5", "method-map", "simulate"}


def test_names_differ_and_are_no_file_of_the_page() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert "bench" not in NAMES


def test_the_page_has_every_command() -> None:
    named = {shlex.split(benchmark.command)[2] for benchmark in BENCHMARKS}
    assert named | ELSEWHERE == set(bench.commands)


def test_every_command_has_the_options_that_are_named() -> None:
    for benchmark in BENCHMARKS:
        program, group, name, *options = shlex.split(benchmark.command)
        command = bench.get_command(click.Context(bench), name)
        assert (program, group) == ("cutset", "bench")
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {option for option in options if option.startswith("-")} <= known


def test_options_that_benchmarks_need_are_options() -> None:
    for benchmark in BENCHMARKS:
        assert not any(BenchmarkOptions().has(name) for name in benchmark.needs + benchmark.uses)


def test_benchmarks_are_found_by_name_in_the_order_of_the_page() -> None:
    assert find_benchmarks([]) == BENCHMARKS
    assert [one.name for one in find_benchmarks(["step", "channel"])] == ["channel", "step"]
    with pytest.raises(UsageError, match="E286"):
        find_benchmarks(["nothing"])
