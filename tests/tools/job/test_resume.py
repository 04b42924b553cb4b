"""What a run may go on from, and what it refuses, before any process is started."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import BAD_INPUT, USAGE, Cutset, refused
from marking import with_slow
from places import USER_MODELS

from cutset.errors import CheckpointError
from cutset.ps.checkpoint.journal import list_checkpoint_folders
from cutset.ps.checkpoint.manifest import MANIFEST, Manifest
from cutset.ps.checkpoint.write_checkpoint import write_manifest, write_shard, write_state
from cutset.ps.methods.registry import parse_method
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD, Adam
from cutset.ps.slices.slice_state import SliceState
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.export_weights import describe_checkpoint
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.samples.read_samples import read_split
from cutset.tools.samples.sample_loader import make_stream
from cutset.tools.task.load_task import load_task
from cutset.tools.training.checkpoint_sets import CheckpointSets, remove_incomplete

GOOD = USER_MODELS / "good.py"
TASK = f"{GOOD}:task"
OF_CHECKPOINT = 8


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> RunConfig:
    return RunConfig(
        TASK, method=Sync(), optimizer=Adam(0.01), out=tmp_path / "before", shards=2, seed=5, baseline=False
    )


def written(job: Job, folder: Path, step: int, **more: Any) -> Path:
    """A checkpoint as a run writes it, of ones; more: what its manifest says else."""
    files = []
    for shard in range(job.shards):
        held = [SliceState(piece, torch.ones(piece.size), {}, step) for piece in job.slices if piece.shard == shard]
        for slice_state in held:
            slice_state.state.update(job.optimizer.init_state(slice_state.value))
        files.append(write_shard(folder, shard, held, job.optimizer))
    state = write_state(folder, 0, [])
    write_manifest(folder, Manifest(job.slices, job.regions, files, [state], describe_checkpoint(job, step) | more))
    return folder


@pytest.fixture
def run(options: RunConfig) -> Path:
    """The folder of a run that has two checkpoints and has begun a third."""
    job = prepare(options)
    for number in (1, 2):
        written(job, options.out / "checkpoints" / f"{number:06d}", 3 * number)
    third = options.out / "checkpoints" / "000003"
    write_state(third, 0, [])
    return options.out


Resume = Callable[..., Any]


@pytest.fixture
def resume(cutset: Cutset, run: Path, tmp_path: Path) -> Resume:
    """`cutset train --resume` of the run; each option may be said otherwise, and None leaves it out."""

    def call(task: str = TASK, **more: Any) -> Any:
        given = {
            "resume": run,
            "out": tmp_path / "new",
            "method": "sync",
            "optimizer": "adam",
            "seed": 5,
            "shards": 2,
        } | more
        words = [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]
        return cutset("train", task, "--no-baseline", *words)

    return call


def test_the_last_complete_one_is_taken(run: Path, options: RunConfig, tmp_path: Path) -> None:
    assert find_checkpoint(run).folder == run / "checkpoints" / "000002"
    job = prepare(replace(options, out=tmp_path / "new", resume=run, shards=1))
    assert (job.training.start_step, job.training.version, sorted(job.training.optimizer_state)) == (
        6,
        6,
        ["mean", "square"],
    )


def test_the_last_is_of_the_last_run_in_the_folder_whatever_the_clock_says(run: Path, options: RunConfig) -> None:
    """A longer run may have been there before, and the clock may have been put back since."""
    written(prepare(options), run / "checkpoint", 500)
    assert find_checkpoint(run).manifest.about["step"] == 500
    after = prepare(options)
    written(after, run / "checkpoints" / "000001", 3, written=1.0)
    assert find_checkpoint(run).manifest.about["step"] == 3
    written(after, run / "checkpoints" / "000002", 6, written=0.5)
    assert find_checkpoint(run).manifest.about["step"] == 6


def test_what_goes_on_from_an_older_one_is_later_than_what_was_there(run: Path, options: RunConfig) -> None:
    first = run / "checkpoints" / "000001"
    again = prepare(replace(options, resume=first))
    assert again.run == 1 + prepare(replace(options, out=run.parent / "elsewhere", resume=run)).run
    assert again.training.start_step == 3
    written(again, run / "checkpoints" / "000009", 5)
    assert find_checkpoint(run).manifest.about["step"] == 5


def test_steps_are_counted_by_samples(run: Path, options: RunConfig, tmp_path: Path) -> None:
    job = prepare(replace(options, out=tmp_path / "new", resume=run, replicas=2, epochs=2))
    assert (job.training.start_step, job.training.steps) == (3, 12)


@pytest.mark.parametrize(("before", "says"), [(0, False), (96, False), (90, True)])
def test_of_data_with_other_samples_it_says_that_their_order_is_another_one(
    run: Path, options: RunConfig, before: int, says: bool
) -> None:
    """Samples come in an order that depends on how many there are; a checkpoint that does not say it is left alone."""
    job = prepare(options)
    assert describe_checkpoint(job, 3)["epoch_samples"] == job.training.samples == 96
    third = written(job, run / "checkpoints" / "000003", 4, epoch_samples=before)
    notes = [note for note in prepare(replace(options, out=run.parent / "new", resume=third)).notes if "count" in note]
    expected = "the data has 96 samples now, not 90 as when the checkpoint was made, so that they come in another order"
    assert [note.startswith(expected) for note in notes] == [True] * says


@pytest.mark.parametrize("replicas", [2, 4])
def test_none_is_trained_on_again_by_other_replicas(
    run: Path, options: RunConfig, tmp_path: Path, replicas: int
) -> None:
    """After 6 steps of one replica: 3 of two, and one and a half of four, whose first step is of the seventh batch."""
    job = prepare(replace(options, out=tmp_path / "new", resume=run, replicas=replicas, epochs=9))
    training = job.training
    assert training.start_step == 6 // replicas
    begun = training.start_step * replicas * training.batch + training.first_sample
    assert begun == find_checkpoint(run).manifest.about["samples"] == 6 * training.batch
    samples, known = read_split(load_task(training.task), "train"), {"batch": training.batch, "seed": training.seed}
    before, here = make_stream(samples, **known), make_stream(samples, **known, first=training.first_sample)
    first = training.start_step * replicas
    assert [here.indices(first + n).tolist() for n in range(9)] == [before.indices(6 + n).tolist() for n in range(9)]
    assert [here.epochs(first + n).tolist() for n in range(9)] == [before.epochs(6 + n).tolist() for n in range(9)]
    left = 9 * training.samples - training.first_sample
    assert training.steps == left // training.batch // replicas, "so that no sample of a tenth epoch is taken"


def test_where_there_is_none(resume: Resume, tmp_path: Path) -> None:
    refused(resume(resume=tmp_path / "nowhere"), OF_CHECKPOINT, "E801", str(tmp_path / "nowhere"), "name a run folder")
    begun = tmp_path / "begun"
    (begun / "checkpoints" / "000001").mkdir(parents=True)
    refused(resume(resume=begun), OF_CHECKPOINT, "E801", str(begun), "1 were begun", "none was written to the end")


def test_a_damaged_one_names_the_file_and_the_one_before(resume: Resume, run: Path) -> None:
    [path] = (run / "checkpoints" / "000002").glob("shard-1.*")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    before = run / "checkpoints" / "000001"
    refused(resume(), OF_CHECKPOINT, "E802", str(path), "is damaged", f"name {before}, the one before")
    path.unlink()
    refused(resume(), OF_CHECKPOINT, "E801", str(path), f"name {before}")
    refused(resume(resume=path.parent), OF_CHECKPOINT, "E801", str(path))


def test_a_newer_format(resume: Resume, run: Path) -> None:
    path = run / "checkpoints" / "000002" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    refused(resume(), OF_CHECKPOINT, "E804", str(path), "format 99", "pip install --upgrade")


def test_a_manifest_that_says_too_little(resume: Resume, run: Path) -> None:
    path = run / "checkpoints" / "000002" / MANIFEST
    plain = json.loads(path.read_text())
    said = {name: plain["about"][name] for name in ("run", "samples", "optimizer")}
    path.write_text(json.dumps({**plain, "about": said}))
    refused(resume(), OF_CHECKPOINT, "E803", "does not say its seed, method", str(run))


def test_nothing_is_left_to_do(resume: Resume, run: Path, options: RunConfig) -> None:
    written(prepare(options), run / "checkpoint", 12)
    refused(resume(), USAGE, "E284", "12 steps of each replica", "after 12", "nothing is left to do", "--epochs 2")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", ["mixed", "looks", "gated"])
def test_of_another_model(resume: Resume, run: Path, name: str) -> None:
    refused(resume(f"{GOOD}:{name}"), BAD_INPUT, "E319", str(run), "the checkpoint was made with")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({"optimizer": "sgd"}, "E282", ["optimizer adam", "not that of sgd", "--optimizer adam"]),
        ({"method": "downpour"}, "E292", ["method sync", "of downpour", "--method sync"]),
        ({"seed": 6}, "E283", ["seed 5", "with 6", "--seed 5"]),
        ({"init": "model.safetensors"}, "E287", ["--resume and --init", "leave one of them out"]),
    ],
)
def test_what_does_not_fit_it(resume: Resume, more: dict[str, Any], code: str, said: list[str]) -> None:
    refused(resume(**more), USAGE, code, *said)


@pytest.mark.parametrize(
    ("method", "every", "fix"),
    [
        ("averaging:every=8", 12, "--checkpoint-every 16"),
        ("easgd:every=4", 3, "--checkpoint-every 4"),
        ("downpour:push=2", 5, "--checkpoint-every 6"),
    ],
)
def test_a_checkpoint_between_two_pushes(resume: Resume, method: str, every: int, fix: str) -> None:
    more = {"method": method, "checkpoint-every": every, "resume": None, "replicas": 2}
    refused(resume(**more), USAGE, "E281", f"--checkpoint-every {every}", fix)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("method", "versions"), [("averaging:every=4", 3), ("diloco:every=6", 2), ("easgd:every=4", 6), ("sync", 12)]
)
def test_checkpoints_come_after_as_many_updates(options: RunConfig, method: str, versions: int) -> None:
    job = prepare(replace(options, method=parse_method(method), replicas=2, checkpoint_every=12, optimizer=SGD(0.1)))
    assert job.checkpoint_versions == versions


# Damaged manifests ---------------------------------------------------------------------------------------------------


def about(**more: Any) -> Callable[[bytes], bytes]:
    """Makes a manifest say something else of the run; of ... it says nothing."""

    def change(data: bytes) -> bytes:
        plain = json.loads(data)
        changed = plain["about"] | more
        plain["about"] = {name: value for name, value in changed.items() if value is not ...}
        return json.dumps(plain).encode()

    return change


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no JSON": lambda data: b"step 6",
    "no text": lambda data: data.replace(b"sync", b"\xff\xfe"),
    "nested without end": lambda data: b'{"about":' * 100_000,
    "a list": lambda data: b"[]",
    "null": lambda data: b"null",
    "no slices": lambda data: data.replace(b'"slices"', b'"sliced"'),
    "of a word": about(written="x"),
    "of null": about(written=None),
    "of a list": about(written=[]),
    "of NaN": about(written=float("nan")),
    "samples of a word": about(samples="x"),
    "fewer than no samples": about(samples=-1),
    "samples of a truth value": about(samples=True),
    "without samples": about(samples=...),
    "run of null": about(run=None),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_passed_over_and_that_is_said(run: Path, damage: str) -> None:
    path = run / "checkpoints" / "000002" / MANIFEST
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    notices = list[str]()
    assert find_checkpoint(run, on_notice=notices.append).folder == run / "checkpoints" / "000001"
    (notice,) = notices
    assert str(path) in notice
    assert "is damaged" in notice
    (run / "checkpoints" / "000001" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"E802: the manifest .*000002/manifest\.json is damaged"):
        find_checkpoint(run)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("damage", ["truncated", "without samples"])
def test_a_job_says_what_it_has_passed_over(run: Path, options: RunConfig, tmp_path: Path, damage: str) -> None:
    path = run / "checkpoints" / "000002" / MANIFEST
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    job = prepare(replace(options, out=tmp_path / "new", resume=run))
    assert job.training.start_step == 3
    assert [note for note in job.notes if str(path) in note]
    job = prepare(replace(options, out=tmp_path / "other", init=run))
    assert [note for note in job.notes if str(path) in note]


def test_a_damaged_one_that_is_named_is_refused(resume: Resume, run: Path) -> None:
    path = run / "checkpoints" / "000002" / MANIFEST
    path.write_bytes(about(samples="x")(path.read_bytes()))
    refused(resume(resume=path.parent), OF_CHECKPOINT, "E802", str(path), "samples")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(["9" * 22, "000003x", "٠٠٠٠٠٣"], ["0001-old", "12", "0000003", "best"]))
@pytest.mark.parametrize("kind", ["folder", "file", "symlink"])
def test_other_names_among_the_checkpoints_are_nobodys(run: Path, options: RunConfig, name: str, kind: str) -> None:
    path = run / "checkpoints" / name
    if kind == "folder":
        shutil.copytree(run / "checkpoints" / "000001", path)
        (path / MANIFEST).write_text("{")
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(run / "checkpoints" / "000001")
    assert find_checkpoint(run).folder.name == "000002"
    assert [folder.name for folder in list_checkpoint_folders(run)] == ["000001", "000002", "000003"]
    CheckpointSets(prepare(options))
    remove_incomplete(run)
    assert path.exists()
    assert not (run / "checkpoints" / "000003").exists()


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_what_is_no_folder_is_no_checkpoint_whatever_its_name(run: Path, kind: str) -> None:
    path = run / "checkpoints" / "000007"
    if kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(run / "checkpoints" / "000001")
    assert find_checkpoint(run).folder.name == "000002"
    remove_incomplete(run)
    assert path.exists()


def test_more_than_a_million_checkpoints_stay_in_order(run: Path, options: RunConfig) -> None:
    written(prepare(options), run / "checkpoints" / "1000000", 9)
    assert [folder.name for folder in list_checkpoint_folders(run)][-1] == "1000000"
    assert find_checkpoint(run).folder.name == "1000000"
