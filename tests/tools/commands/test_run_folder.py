"""Whose a run folder is: one run's at a time, nobody's before all checks have passed; what the user put there stays.

Training itself is left out, but for the tests at the end.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import USAGE, Cutset, refused
from listening import Listening
from places import USER_MODELS

import cutset as public
from cutset.errors import CutsetError, UsageError
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare_run
from cutset.tools.run_folder import remove_run
from cutset.tools.task.plan_request import HERE
from cutset.tools.train import run

GOOD, WRONG = USER_MODELS / "good.py", USER_MODELS / "wrong.py"
TASK = f"{GOOD}:task"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], roleless: None) -> list[Job]:
    """The jobs that would have been trained; each leaves a model."""
    jobs = []

    def train(job: Job, *reports: object, **more: object) -> dict[str, Any]:
        (job.out / "model.safetensors").write_text("trained")
        jobs.append(job)
        return {**result, "measured": None}

    monkeypatch.setattr("cutset.tools.train.run", train)
    return jobs


def tree(folder: Path) -> dict[str, object]:
    """All that is in a folder, with its content."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def finished_run(cutset: Cutset, out: str = "run") -> Path:
    assert cutset("train", TASK, "--out", out).code == 0
    return Path(out)


# A folder of its own -------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_each_run_gets_a_folder_and_the_last_one_has_a_name(cutset: Cutset, untrained: list[Job]) -> None:
    for number, task in ((1, "task"), (2, "mixed")):
        folder = Path(f"runs/{number:04d}-{task}")
        told = cutset("train", f"{GOOD}:{task}")
        assert told.code == 0
        assert f"report: {folder}/report.html" in told.out
        assert os.readlink("runs/last") == folder.name
        assert json.loads(Path("runs/last/config.json").read_text())["out"] == str(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [job.out.name for job in untrained] == ["0001-task", "0002-mixed"]
    assert stat.S_IMODE(Path("runs").stat().st_mode) & 0o500 == 0o500
    assert "0001-task" in os.listdir("runs")


@pytest.mark.slow
def test_the_demo_and_python_do_the_same(cutset: Cutset, untrained: list[Job]) -> None:
    demo = cutset("demo")
    assert demo.code == 0
    assert demo.out.splitlines()[-1].startswith("Nothing gained on this machine: the two processes that have the cut")
    assert untrained[0].config.plan_request.source == HERE
    assert os.readlink("runs/last") == "0001-digits_large"
    public.train(TASK)
    assert os.readlink("runs/last") == "0002-task"
    assert cutset("demo", "--out", "runs/last").code == USAGE


@pytest.mark.run
def test_a_run_that_fails_its_checks_leaves_no_folder(cutset: Cutset, untrained: list[Job], here: Path) -> None:
    refused(cutset("train", TASK, "--replicas", 100), USAGE, "E223")
    refused(cutset("train", TASK, "--replicas", 100, "--out", "new/deep/run"), USAGE, "E223")
    assert tree(here) == {}
    assert cutset("train", TASK).code == 0
    before = tree(here)
    refused(cutset("train", TASK, "--replicas", 100), USAGE, "E223")
    assert tree(here) == before


def test_names_that_no_run_gave_do_not_disturb_the_count(cutset: Cutset, untrained: list[Job]) -> None:
    for name in ("0007-mine", "99999999999999-x", "notes", "0100"):
        Path("runs", name).mkdir(parents=True)
    assert cutset("train", TASK).code == 0
    assert os.readlink("runs/last") == "0008-task"


def test_a_folder_that_is_called_last_stays(cutset: Cutset, untrained: list[Job], here: Path) -> None:
    Path("runs/last").mkdir(parents=True)
    before = tree(here)
    refused(cutset("train", TASK), USAGE, "E278", "mv runs/last runs/0000-last")
    assert tree(here) == before


def test_a_folder_that_is_named_is_the_users_alone_too(cutset: Cutset, untrained: list[Job]) -> None:
    assert stat.S_IMODE(finished_run(cutset, "deep/run").stat().st_mode) == 0o700
    assert not os.path.lexists("runs")


# Nothing changes before all checks have passed -----------------------------------------------------------------------

FAILING = {
    "too many replicas": ([TASK, "--replicas", "100"], "E223"),
    "far too many": ([TASK, "--replicas", "1000"], "E221"),
    "no such task": ([f"{GOOD}:nothing"], "E302"),
    "labels that do not fit": ([f"{WRONG}:labels_out_of_range"], "E314"),
    "no parameters": ([f"{WRONG}:without_parameters"], "E316"),
    "weights of another model": (["cutset.models:digits", "--init", "run/initial.safetensors"], "E317"),
    "no weights": ([TASK, "--init", "nothing.safetensors"], "E318"),
    "nothing to resume": ([TASK, "--resume", "nothing"], "E801"),
    "no plan": ([TASK, "--machines", "211", "--candidates", "metis"], "E403"),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("what", FAILING)
@pytest.mark.parametrize(
    "finished", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["finished", "unfinished"]
)
def test_a_failed_check_changes_nothing(
    cutset: Cutset, untrained: list[Job], here: Path, what: str, finished: bool
) -> None:
    folder = finished_run(cutset)
    if not finished:
        for name in ("result.json", "model.safetensors"):
            (folder / name).unlink()
    (folder / "notes.txt").write_text("mine")
    before = tree(here)
    options, code = FAILING[what]
    outcome = cutset("train", *options, "--out", folder, *(["--overwrite"] if finished else []))
    assert f"error {code}: " in outcome.err, outcome
    assert tree(here) == before


def test_an_uncut_run_keeps_no_placement_of_the_one_before(cutset: Cutset, untrained: list[Job]) -> None:
    assert (finished_run(cutset) / "placement.json").exists()
    assert cutset("train", f"{GOOD}:gated", "--out", "run", "--overwrite").code == 0
    assert not Path("run/placement.json").exists()


# What is there already -----------------------------------------------------------------------------------------------


def test_a_finished_run_is_replaced_only_where_the_user_says_so(cutset: Cutset, untrained: list[Job]) -> None:
    folder = finished_run(cutset)
    before = tree(folder)
    refused(cutset("train", TASK, "--out", folder), USAGE, "E277", "run holds", "--overwrite", "--resume run")
    with pytest.raises(UsageError, match="E277"):
        public.train(TASK, out=folder)
    assert tree(folder) == before
    assert cutset("train", TASK, "--out", folder, "--seed", 1, "--overwrite").code == 0
    assert json.loads((folder / "config.json").read_text())["seed"] == 1


def test_checkpoints_of_a_run_that_was_broken_off_are_a_result_too(cutset: Cutset, untrained: list[Job]) -> None:
    folder = finished_run(cutset)
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    assert cutset("train", TASK, "--out", folder).code == 0  # nothing of the run before would be missed
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "checkpoints/000001").mkdir(parents=True)
    (folder / "checkpoints/000001/manifest.json").touch()
    refused(cutset("train", TASK, "--out", folder), USAGE, "E277", "checkpoints/000001/manifest.json")


def test_overwriting_removes_what_a_run_wrote_and_nothing_of_the_users(cutset: Cutset, untrained: list[Job]) -> None:
    folder = finished_run(cutset)
    theirs = ["checkpoints/000001/manifest.json", "checkpoint/shard-0-ab.safetensors", "batch/operations.jsonl"]
    theirs += ["logs/worker-1.0.log", "journal/shard-0.safetensors", "buffers-0.0.safetensors", "trace.json"]
    mine = ["notes.txt", "logs/notes.txt", "checkpoints/keep/model.safetensors", "config.json.bak", "figures/a.svg"]
    for name in (*theirs, *mine):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    assert cutset("train", TASK, "--out", folder, "--overwrite").code == 0
    assert [name for name in theirs if (folder / name).exists()] == []
    assert [(folder / name).read_text() for name in mine] == mine
    assert not (folder / "journal").exists()


def test_what_a_killed_command_left_half_done_goes(cutset: Cutset, untrained: list[Job]) -> None:
    Path("run/.cutset-0123.tmp").mkdir(parents=True)
    Path("run/.cutset-0123.tmp/config.json").touch()
    Path("run/.cutset-4567.tmp").touch()
    assert [path.name for path in finished_run(cutset).glob(".*")] == []


@pytest.mark.run
def test_links_in_a_run_folder_are_not_followed_where_it_is_cleared(cutset: Cutset, untrained: list[Job]) -> None:
    folder = finished_run(cutset)
    Path("elsewhere").mkdir()
    Path("elsewhere/mine.log").touch()
    (folder / "logs").symlink_to("../elsewhere")
    assert cutset("train", TASK, "--out", folder, "--overwrite").code == 0
    assert Path("elsewhere/mine.log").exists()


@pytest.mark.parametrize("name", ["config.json", "result.json", "report.html", "logs/mine.txt", "checkpoint"])
def test_a_folder_with_such_files_that_is_no_run(cutset: Cutset, here: Path, name: str) -> None:
    path = Path("project", name)
    path.parent.mkdir(parents=True)
    path.write_text('{"task": "wash up"}')
    before = tree(here)
    for more in ([], ["--overwrite"]):
        said = ["project has", name.partition("/")[0], "--out FOLDER"]
        refused(cutset("train", TASK, "--out", "project", *more), USAGE, "E279", *said)
    assert tree(here) == before


def test_other_files_are_no_hindrance(cutset: Cutset, untrained: list[Job]) -> None:
    Path("project/logs").mkdir(parents=True)
    Path("project/mine.py").touch()
    assert finished_run(cutset, "project").is_dir()
    assert Path("project/mine.py").exists()


def test_overwriting_means_something_only_with_a_folder(cutset: Cutset) -> None:
    refused(cutset("train", TASK, "--overwrite"), USAGE, "E230", "--overwrite", "--out")
    refused(cutset("train", TASK, "--resume", "a", "--out", "a", "--overwrite"), USAGE, "E228", "--resume")


# One run at a time ---------------------------------------------------------------------------------------------------

HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(cutset: Cutset, untrained: list[Job]) -> Iterator[subprocess.Popen[str]]:
    """A process that has the folder `run`, of a run that has not ended."""
    folder = finished_run(cutset)
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("method", ["downpour", "sync", "hogwild", "sandblaster"])
@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume", "run"]], ids=str)
def test_a_second_run_is_refused_before_it_changes_anything(
    cutset: Cutset, held: subprocess.Popen[str], here: Path, method: str, more: list[str]
) -> None:
    before = tree(here)
    os.symlink("run", "alias")
    for name in ("run", "alias"):
        refused(cutset("train", TASK, "--method", method, "--out", name, *more), USAGE, "E272", "run")
    os.unlink("alias")
    assert tree(here) == before


@pytest.mark.run
def test_the_lock_ends_with_its_process(cutset: Cutset, held: subprocess.Popen[str]) -> None:
    held.kill()
    held.wait()
    assert cutset("train", TASK, "--out", "run").code == 0


@pytest.mark.run
def test_the_folder_is_locked_until_the_run_has_ended(cutset: Cutset, untrained: list[Job]) -> None:
    for method in ("downpour", "sandblaster"):
        with prepare_run(RunConfig(TASK, out="run", method=method)):
            refused(cutset("train", TASK, "--out", "run"), USAGE, "E272")
        with prepare_run(RunConfig(TASK)) as job:
            refused(cutset("train", TASK, "--out", "runs/last"), USAGE, "E272", str(job.out))
            assert cutset("train", TASK).code == 0
            assert os.readlink("runs/last") != job.out.name


# Whole runs ----------------------------------------------------------------------------------------------------------

STOPPED = "E999"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"method": "downpour", "checkpoint_every": 2, "machines": 2}, marks=pytest.mark.slow),
        pytest.param({"method": "sync", "checkpoint_every": 2, "replicas": 2}, marks=pytest.mark.slow),
        pytest.param({"method": "diloco:every=2", "replicas": 2}, marks=pytest.mark.slow),
        pytest.param({"method": "sandblaster:iterations=4", "machines": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda options: options["method"],
)
@pytest.mark.parametrize("ends", ["badly", pytest.param("well", marks=pytest.mark.slow)])
def test_all_that_a_run_writes_is_known(options: dict[str, Any], ends: str) -> None:
    def follow(step: int, loss: float) -> None:
        if ends == "badly" and step >= 2:
            raise CutsetError(STOPPED, "half way")

    config = RunConfig(f"{GOOD}:mixed", out="run", baseline=False, **options)
    try:
        with prepare_run(config) as job:
            run(job, Listening(follow))
    except CutsetError as error:
        if error.code != STOPPED:
            raise
    assert tree(Path("run"))
    remove_run(Path("run"))
    assert tree(Path("run")) == {}


@pytest.mark.slow
def test_a_run_goes_on_in_its_folder_and_in_a_new_one(cutset: Cutset) -> None:
    options = ["--no-baseline", "--checkpoint-every", 4]
    assert cutset("train", TASK, *options).code == 0
    assert cutset("train", TASK, *options, "--resume", "runs/last", "--epochs", 2, "--out", "runs/last").code == 0
    assert cutset("train", TASK, *options, "--resume", "runs/last", "--epochs", 3).code == 0
    assert os.readlink("runs/last") == "0002-task"
    config = json.loads(Path("runs/last/config.json").read_text())
    assert (config["out"], config["resume"]) == ("runs/0002-task", str(Path("runs/0001-task").resolve()))
    assert cutset("eval", TASK).out.count("of 50 test samples correct") == 1
    refused(cutset("train", TASK, "--resume", "runs/last", "--epochs", 1), USAGE, "E284")
    assert os.readlink("runs/last") == "0002-task"


@pytest.mark.slow
def test_sandblaster_goes_on_from_the_last_run_in_a_new_folder(cutset: Cutset) -> None:
    options = ["--no-baseline", "--method"]
    assert cutset("train", TASK, *options, "sandblaster:iterations=3").code == 0
    assert cutset("train", TASK, *options, "sandblaster:iterations=6", "--resume", "runs/last").code == 0
    assert os.readlink("runs/last") == "0002-task"
    assert Path("runs/0001-task/batch/operations.jsonl").exists()
