"""Suites that have a target of their own: it leaves out none of their tests, whatever marks these have."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.run
@pytest.mark.parametrize("target", ["chaos", "engines", "fuzz"])
def test_a_target_runs_all_tests_of_its_suite(target: str) -> None:
    dry_run = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [line] = [line for line in dry_run.splitlines() if re.search(r"-m pytest .*tests/", line)]
    arguments = shlex.split(line.partition("-m pytest ")[2])
    [suite] = [argument for argument in arguments if argument.startswith("tests/")]
    assert _collect(arguments) == _collect([suite, "-m", ""]) > 0


def _collect(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum(int(count) for count in re.findall(r"^tests/\S+: (\d+)$", listed, re.MULTILINE))
