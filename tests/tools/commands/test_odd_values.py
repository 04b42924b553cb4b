"""Values that nobody means - huge or empty ones, bytes that are no text, names that no file can have - are refused."""

import errno
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import USAGE, Cutset, Outcome, refused
from places import USER_MODELS

import cutset as public
from cutset.errors import UsageError

GOOD = USER_MODELS / "good.py"
TASK = f"{GOOD}:task"

HUGE, DIGITS = str(10**30), "9" * 5000
NUMBERS = ["-1", "0", "nan", "inf", "-inf", HUGE, f"-{HUGE}", DIGITS, "", " ", "1e400", "٣", "²", "0x10"]
NAMES = [
    "",
    "a" * 256,
    "a/" * 2100,
    "b/" * 1900,
    "line\nbreak",
    "loop",
    "folder",
    "unreadable",
    "/dev/null",
    "~nobody/x",
]
NOT_TEXT = os.fsdecode(b"\xff.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roleless: None) -> Path:
    """A current folder with some things that are not what their names say, in which nothing is trained."""

    def stop(*_: object, **more: object) -> None:
        raise UsageError("E999", "it would train now", fix="nothing")

    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cutset.tools.train.run", stop)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "unreadable").touch(mode=0o000)
    return tmp_path


def told(outcome: Outcome) -> None:
    """The command has ended with an error of its own, or one of click; whatever the value was."""
    assert "Traceback" not in outcome.err, outcome.err[-2000:]
    assert outcome.code not in (1, 0), outcome
    assert "error E" in outcome.err or "Usage: " in outcome.err


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "options",
    [
        ["--epochs", HUGE],
        ["--batch", HUGE],
        ["--replicas", HUGE],
        ["--shards", HUGE],
        ["--restarts", HUGE],
        ["--restarts", "100000"],
        ["--checkpoint-every", "4", "--keep-checkpoints", HUGE],
    ],
    ids=" ".join,
)
def test_a_number_too_large_for_a_message(cutset: Cutset, options: Sequence[str]) -> None:
    refused(cutset("train", TASK, *options), USAGE, "E220", f"{options[-2]} {options[-1]}", "at most")
    assert cutset("train", TASK, "--epochs", 2**31 - 1).err.count("error E999") == 1


@pytest.mark.parametrize(
    "choice",
    [
        "--method easgd:every=N",
        "--method downpour:fetch=N",
        "--method downpour:warm_start=N",
        "--method ssp:staleness=N",
        "--method sync:backups=N",
        "--method averaging:every=N",
        "--method sandblaster:iterations=N",
        "--method sandblaster:history=N",
    ],
)
def test_an_option_of_a_method_too_large_for_a_message(cutset: Cutset, choice: str) -> None:
    for number in (10**10, HUGE, DIGITS):
        option, value = choice.replace("N", str(number)).split()
        refused(cutset("train", TASK, option, value), USAGE, "E254", value.partition(":")[2].partition("=")[0])
    method = choice.split()[1].replace("=N", "=2147483648")
    with pytest.raises(UsageError, match="E254"):
        public.train(TASK, method=method)


NUMERIC = ("batch", "machines", "max-machines", "micro-batches", "seed")
TRAINING = ("lr", "clip-norm", "epochs", "target", "replicas", "shards", "restarts", "keep-checkpoints")


@pytest.mark.slow
@pytest.mark.parametrize("option", [*NUMERIC, *TRAINING, "checkpoint-every"])
def test_a_number_of_any_kind_is_taken_or_refused(cutset: Cutset, option: str) -> None:
    for value in NUMBERS:
        told(cutset("train", TASK, f"--{option}={value}"))
        if option in NUMERIC and value not in ("0", "٣"):  # which may well be planned with
            told(cutset("plan", TASK, "--candidates", "nothing", f"--{option}={value}"))
        if option == "machines":
            told(cutset("eval", TASK, f"--{option}={value}"))
            told(cutset("probe", f"--{option}={value}", "-o", "no/cluster.toml"))


@pytest.mark.parametrize(
    "shape",
    ["99999999999x3", f"3x{DIGITS}", "99999x99999x99999", f"{2**31}x{2**31}x{2**31}", "2²", "", "x", "0x3", "-1x3"],
    ids=lambda shape: shape[:30],
)
def test_an_input_that_no_memory_holds_or_that_is_none(cutset: Cutset, shape: str) -> None:
    refused(cutset("plan", f"{GOOD}:module", "--input", shape), USAGE, "E213", shape)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("pin", ["*=9", f"*={DIGITS}", "*=²", "*=-1"], ids=lambda pin: pin[:9])
def test_a_pin_to_a_machine_far_away(cutset: Cutset, pin: str) -> None:
    refused(cutset("plan", TASK, "--pin", pin), USAGE, "E205", "no machine of the cluster")


@pytest.mark.parametrize("counts", ["²", DIGITS, "1,", "-1"], ids=lambda counts: counts[:9])
def test_machine_counts_of_a_benchmark(cutset: Cutset, counts: str) -> None:
    refused(cutset("bench", "figure3", "--machines", counts), USAGE, "E241")


# Names ---------------------------------------------------------------------------------------------------------------

# Every option and argument that names a file, or a folder; the name is NAME.
PATHS = {
    "out": ["train", TASK, "--replicas", "100", "--out", "NAME"],
    "init": ["train", TASK, "--init", "NAME"],
    "resume": ["train", TASK, "--resume", "NAME"],
    "cluster": ["train", TASK, "--cluster", "NAME"],
    "placement": ["train", TASK, "--placement", "NAME"],
    "data": ["train", "cutset.models:mnist", "--data", "mnist:NAME"],
    "text": ["eval", "cutset.models:word2vec", "--data", "text:NAME", "--word-vectors", "--near", "king"],
    "plan": ["plan", TASK, "--candidates", "nothing", "-o", "NAME"],
    "checkpoint": ["eval", TASK, "--checkpoint", "NAME"],
    "placement of eval": ["eval", TASK, "--placement", "NAME"],
    "questions": ["eval", "cutset.models:word2vec", "--word-vectors", "--questions", "NAME"],
    "similarity": ["eval", "cutset.models:word2vec", "--word-vectors", "--similarity", "NAME"],
    "show": ["show", "NAME"],
    "check": ["check", "NAME", TASK],
    "scale": ["scale", "NAME", "--replicas", "2"],
    "probe": ["probe", "--machines", "0", "-o", "NAME"],
    "figure3": ["bench", "figure3", "--machines", "0", "--svg", "NAME"],
    "graphs": ["bench", "plan", "--graphs", "NAME"],
    "file of a task": ["plan", "NAME.py:task"],
    "module of a task": ["plan", "NAME:task"],
    "factory": ["plan", f"{GOOD}:NAME"],
}


def fill_in(what: str, name: str) -> Iterator[str]:
    return (word.replace("NAME", name) for word in PATHS[what])


@pytest.mark.slow
@pytest.mark.parametrize("what", PATHS)
def test_a_name_of_any_kind_is_taken_or_refused(cutset: Cutset, what: str) -> None:
    for name in NAMES:
        told(cutset(*fill_in(what, name)))


@pytest.mark.parametrize("what", PATHS)
def test_bytes_that_are_no_text(cutset: Cutset, what: str) -> None:
    refused(cutset(*fill_in(what, NOT_TEXT)), USAGE, "E231", "\\udcff")


@pytest.mark.parametrize("option", ["out", "init", "resume", "cluster", "placement"])
def test_python_refuses_such_names_too(option: str) -> None:
    names: list[Any] = [NOT_TEXT, "", "a" * 256]
    for name, kind in itertools.product(names, (str, Path)):
        if name or kind is str:
            with pytest.raises(UsageError, match=r"E231|E233"):
                public.train(TASK, **{option: kind(name)})


def test_a_run_folder_below_a_folder_whose_name_is_no_text(
    cutset: Cutset, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Path(os.fsdecode(os.fsencode(here) + b"/\xff"))
    inner.mkdir()
    monkeypatch.chdir(inner)
    for more in ([], ["--out", "run"]):
        refused(cutset("train", TASK, *more), USAGE, "E231", "\\udcff")
    assert list(inner.iterdir()) == []


def test_a_current_folder_that_is_gone(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    script = 'cd gone && rmdir ../gone && exec "$0" plan cutset.models:digits'
    command = ["sh", "-c", script, str(Path(sys.executable).with_name("cutset"))]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=False)
    refused(Outcome(done.returncode, done.stdout, done.stderr), USAGE, "E235", "no current folder")


# Open files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The limit on open files, as a run sees and sets it."""
    limits = {"open files": (40, 40)}
    monkeypatch.setattr("resource.getrlimit", lambda kind: limits["open files"])
    monkeypatch.setattr("resource.setrlimit", lambda kind, value: limits.update({"open files": value}))
    return limits


def test_a_run_that_may_not_open_enough_files_does_not_begin(
    cutset: Cutset, limit: dict[str, tuple[int, int]], here: Path
) -> None:
    before = sorted(here.iterdir())
    said = ["5 processes need 90 open files; the limit is 40", "ulimit -n 90"]
    refused(cutset("train", TASK, "--machines", 2), USAGE, "E234", *said)
    assert sorted(here.iterdir()) == before
    limit["open files"] = (40, 1000)
    assert "error E999" in cutset("train", TASK, "--machines", 2).err
    assert limit["open files"] == (90, 1000)
    limit["open files"] = (40, resource.RLIM_INFINITY)
    assert "error E999" in cutset("train", TASK, "--replicas", 12).err
    assert limit["open files"] == (180, resource.RLIM_INFINITY)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_command_that_may_open_no_more_files_says_so(
    cutset: Cutset, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def exhausted() -> None:
        raise OSError(number, "Too many open files")

    monkeypatch.setattr("cutset.partition.placement.placement_file.schema", exhausted)
    refused(cutset("schema"), USAGE, "E234", "Too many open files", "ulimit -n 1024")
