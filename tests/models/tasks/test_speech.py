"""DistBelief's acoustic net, the small one, and windows of spoken digits."""

import json

import pytest
import torch
from command_line import Cutset
from command_line import cutset as cutset
from plain_training import train_plainly
from takes import write_takes

from cutset.models import fsdd, speech
from cutset.models.task import TaskError
from cutset.models.tasks.speech import _choose_speakers
from cutset.tools.task.load_task import TaskSpec, load_task


def test_it_has_the_papers_layers_and_42_million_parameters():
    model = speech().build(seed=0, device="meta")
    shapes = [tuple(m.weight.shape) for m in model if isinstance(m, torch.nn.Linear)]
    assert shapes == [(2560, 440), (2560, 2560), (2560, 2560), (2560, 2560), (8192, 2560)]
    assert [type(m).__name__ for m in model] == ["Linear", "Sigmoid"] * 4 + ["Linear"]
    assert sum(p.numel() for p in model.parameters()) == 41_777_152


def test_example_is_like_the_data_and_fits_model_and_loss():
    task = speech()
    example, rows = task.example(3), task.data("train").rows(torch.arange(3))
    for a, b in zip((*example.inputs, *example.targets), (*rows.inputs, *rows.targets), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    with torch.device("meta"):
        model = task.model()
    outputs = model(*(t.to("meta") for t in example.inputs))
    assert task.loss(outputs, *(t.to("meta") for t in example.targets)).shape == ()


def test_a_window_is_eleven_frames_and_its_class_the_digit_and_the_part_of_it(tmp_path):
    folder, states = write_takes(tmp_path), 3
    data = fsdd(f"fsdd:{folder}", states=states).data("train")
    (windows,), (classes,) = data.inputs, data.targets
    assert (windows.shape, windows.dtype) == ((2 * 10 * 22, 440), torch.float32)  # two speakers, 22 windows of a take
    of_first = classes[:22].tolist()
    assert of_first == sorted(of_first)
    assert set(of_first) == {0, 1, 2}
    assert classes.reshape(20, 22)[:, 0].tolist() == 2 * list(range(0, 30, states))
    frames = windows[:2].reshape(2, 11, 40)
    assert torch.equal(frames[0, 1:], frames[1, :-1])  # the next window is a frame later
    assert 0.4 < float(windows.std()) < 1.2


def test_speakers_of_tests_are_not_in_training(tmp_path):
    write_takes(tmp_path)
    train, test = (_choose_speakers(tmp_path, split).speakers for split in ("train", "test"))
    assert (set(train), set(test)) == ({"anna", "ben"}, {"carl"})


def test_a_louder_voice_sounds_the_same(tmp_path):
    (windows,) = fsdd(f"fsdd:{write_takes(tmp_path)}").data("train").inputs
    anna, ben = windows.reshape(2, -1)
    assert float((anna - ben).abs().mean()) < 0.1 * float(anna.abs().mean())


def test_the_large_net_takes_the_same_windows(tmp_path):
    task = speech(data=f"fsdd:{write_takes(tmp_path)}", states=2)
    train = task.data("train")
    assert train.inputs[0].shape[1] == task.example(1).inputs[0].shape[1]
    assert set(train.targets[0].tolist()) == set(range(20))


@pytest.mark.parametrize("states", [0, 1000, 1.5, True])
def test_odd_states_are_refused(states):
    with pytest.raises(TaskError, match="states is"):
        fsdd(states=states)


def test_without_data_it_says_how_to_name_it():
    with pytest.raises(TaskError, match="needs its train samples") as caught:
        fsdd().data("train")
    assert caught.value.fix == "--data fsdd:DIR"
    with pytest.raises(TaskError, match="'mnist' is not known; known: fsdd"):
        fsdd("mnist:x")


@pytest.mark.run
@pytest.mark.timeout(300)
def test_one_process_and_replicas_reach_what_plain_torch_reaches(cutset: Cutset, tmp_path):
    name, data = "cutset.models:fsdd", f"fsdd:{write_takes(tmp_path / 'data', takes=4)}"
    task = load_task(TaskSpec(name, data))
    plain, tests = train_plainly(task, seed=0, lr=0.1, epochs=20), task.data("test")
    accuracy = task.correct(plain(*tests.inputs), *tests.targets) / len(tests)
    options = ["--replicas", 2, "--optimizer", "sgd", "--lr", 0.1, "--epochs", 20, "--out", tmp_path / "run", "--json"]
    alone, together = json.loads(cutset("train", name, "--data", data, *options).out)["rows"]
    assert alone["test_accuracy"] == pytest.approx(accuracy, abs=0.002)
    assert together["test_accuracy"] > accuracy - 0.01
