"""Scores of a cut and of an uncut model: every sample once, the last batch filled up."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import finest_cut, load, subject
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.models.metrics import Perplexity
from cutset.models.task import Data, Task, TaskError, make_example_batches
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.replica.replica import Replica
from cutset.runtime.replica.sized_workers import SizedWorkers
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.uncut_worker import UncutWorker
from cutset.tools.config.run_config import RunConfig
from cutset.tools.evaluation.evaluate import evaluate
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.read_samples import read_split
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import compile_other_sizes, compile_programs
from cutset.tools.task.scores import Scorer, Scores, score, score_uncut
from cutset.tools.train import run

NAMES = ["worker-0.0", "worker-0.1"]
TASK = Task("any", lambda: subject("mlp").fresh()[0], torch.nn.functional.cross_entropy, make_example_batches(((12,),)))


def samples(count: int) -> Data:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 12, dtype=torch.float64, generator=generator)
    return Data((inputs,), (torch.randint(0, 5, (count,), generator=generator),))


@pytest.mark.parametrize("count", [1, 6, 13, 60])
def test_a_cut_model_has_as_many_correct_answers_as_plain_torch(count: int) -> None:
    of, data = subject("mlp"), samples(count)
    model, loss = of.fresh()
    with torch.no_grad():
        expected = int((model.eval()(*data.inputs).argmax(1) == data.targets[0]).sum())
        mean = float(loss(model(*data.inputs), *data.targets))
    alone = score_uncut(UncutWorker(model, loss), TASK, data, 4)
    assert (alone.correct, alone.samples, alone.accuracy) == (expected, count, expected / count)
    assert alone.loss == pytest.approx(mean, rel=1e-12)
    spelled = lower_cut(of.graph, finest_cut(of.graph, 2))
    parts = programs(lower_cut(of.evaluation, carry_cut(of.graph, spelled.cut, of.evaluation)), training=False)
    with Replica(parts) as replica:
        load(replica, of)
        states = [worker.states for worker in replica.workers]

    def role(machine: int, channel: MemoryChannel) -> list[Scores | None]:
        workers = SizedWorkers([parts[machine]], Mailbox(channel), NAMES, states=states[machine])
        return [score(workers, TASK, data, step) for step in (1, 2)]

    found = MemoryNetwork().run({n: lambda channel, m=m: role(m, channel) for m, n in enumerate(NAMES)})  # type: ignore[misc]
    ((cut, again),) = [both for both in found.values() if both[0] is not None]
    assert cut == again
    assert cut is not None
    assert (cut.correct, cut.samples) == (expected, count)
    assert cut.loss == pytest.approx(mean, rel=1e-12)
    assert [None, None] in found.values()


SCORED = USER_MODELS / "scored.py"
LANGUAGE = TaskSpec(f"{SCORED}:language")


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["language"], ["regression", "two_heads"]))
def test_a_cut_run_measures_what_plain_torch_does(tmp_path: Path, name: str) -> None:
    """50 test samples in batches of 8: the last one is filled up. The language model's loss cannot be: it is short."""
    task = load_task(TaskSpec(f"{SCORED}:{name}"))
    options = RunConfig(f"{SCORED}:{name}", machines=2, replicas=1, baseline=False, epochs=1, out=tmp_path)
    result = run(prepare(options))
    tests, model = read_split(task, "test"), task.build(seed=0)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        part = tests.rows(torch.arange(50))
        outputs = model.eval()(*part.inputs)
        expected = float(task.loss(outputs, *part.targets))
    cut = result["rows"][-1]
    assert result["settings"]["machines"] == 2
    assert cut["test_loss"] == pytest.approx(expected, rel=1e-5)
    if name == "language":
        assert cut["metrics"] == {"perplexity": pytest.approx(math.exp(expected), rel=1e-5)}
        assert cut["test_accuracy"] is None
    elif name == "regression":
        mean = float((outputs - part.targets[0]).abs().mean())
        assert cut["metrics"] == {"mae": pytest.approx(mean, rel=1e-5)}
        assert cut["test_accuracy"] is None
    else:
        right = int((outputs["classes"].argmax(1) == part.targets[0]).sum())
        assert cut["test_accuracy"] == right / 50
    again = evaluate(TaskSpec(f"{SCORED}:{name}"), tmp_path, request=PlanRequest())
    assert again["machines"] == 2
    assert (again["loss"], again["metrics"]) == (pytest.approx(cut["test_loss"]), pytest.approx(cut["metrics"]))


def short_sentences(count: int) -> Data:
    """Sentences of which some words have no target, another number in each."""
    words, labels = read_split(load_task(LANGUAGE), "test").rows(torch.arange(count)).inputs
    ignored = torch.rand(labels.shape, generator=torch.Generator().manual_seed(count)) < 0.4
    labels = torch.where(ignored, -100, labels)
    labels[:, 0] = words[:, 0]
    return Data((words, labels), (labels,))


def plain_scores(task: Task, model: nn.Module, data: Data, size: int) -> tuple[float, float]:
    """Loss and perplexity as a loop in plain torch has them: batches of `size`, the last one short."""
    losses, tokens = 0.0, [0.0, 0.0]
    for start in range(0, len(data), size):
        part = data.rows(torch.arange(start, min(start + size, len(data))))
        with torch.no_grad():
            answer, labels = model.eval()(*part.inputs), part.targets[0]
        losses += float(task.loss(answer, labels)) * len(part)
        tokens[0] += float(nn.functional.cross_entropy(answer.logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        tokens[1] += int((labels != -100).sum())
    return losses / len(data), math.exp(tokens[0] / tokens[1])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 21, 50])
def test_a_loss_inside_the_model_counts_every_sample(count: int) -> None:
    task, data = load_task(LANGUAGE), short_sentences(count)
    capture, model = capture_task(LANGUAGE), task.build(seed=3)
    expected = plain_scores(task, model, data, capture.batch)
    uncut = score_uncut(UncutWorker(task.build(seed=3), task.loss), task, data, capture.batch)
    assert (uncut.loss, uncut.metrics["perplexity"]) == pytest.approx(expected, rel=1e-6)
    assert (uncut.samples, uncut.correct) == (count, None)

    cut = finest_cut(capture.train, 2)
    evaluations = compile_programs(capture, cut)[1]
    others = compile_other_sizes(capture, LANGUAGE, cut, data)
    assert [len(machines) for machines in others.evaluations] == ([2] if count % capture.batch else [])
    values = collect_state(model, task.loss, {**capture.constants, **others.constants})

    def role(machine: int, channel: MemoryChannel) -> list[Scores | None]:
        programs = [machines[machine] for machines in (evaluations, *others.evaluations)]
        workers = SizedWorkers(programs, Mailbox(channel), NAMES)
        workers.first.states.load(values.__getitem__)
        own = load_task(LANGUAGE)  # a metric collects
        return [score(workers, own, data, step) for step in (1, 2)]

    found = MemoryNetwork().run({n: lambda channel, m=m: role(m, channel) for m, n in enumerate(NAMES)})  # type: ignore[misc]
    ((scores, again),) = [both for both in found.values() if both[0] is not None]
    assert scores == again
    assert scores is not None
    assert (scores.loss, scores.metrics["perplexity"]) == pytest.approx(expected, rel=1e-6)
    assert (scores.samples, scores.correct) == (count, None)


@pytest.mark.parametrize("name", ["prototypes", "reconstruction", "time_first", "contrastive", "centred"])
def test_outputs_that_are_no_samples_are_never_cut_off(name: str) -> None:
    """The last of 50 samples make a batch of 2; a parameter, or the steps of time, have 8 rows, as many as a batch."""
    spec = TaskSpec(f"{SCORED}:{name}")
    task, data, capture = load_task(spec), read_split(load_task(spec), "test"), capture_task(spec)
    model, losses = task.build(seed=3).eval(), 0.0
    for start in range(0, 50, 8):
        part = data.rows(torch.arange(start, min(start + 8, 50)))
        losses += float(task.loss(model(*part.inputs), *part.targets).detach()) * len(part)
    scores = score_uncut(UncutWorker(task.build(seed=3), task.loss), task, data, 8)
    assert (scores.loss, scores.samples) == (pytest.approx(losses / 50, rel=1e-6), 50)

    cut = finest_cut(capture.train, 2)
    evaluations = compile_programs(capture, cut)[1]
    others = compile_other_sizes(capture, spec, cut, data)
    values = collect_state(task.build(seed=3), task.loss, {**capture.constants, **others.constants})

    def role(machine: int, channel: MemoryChannel) -> Scores | None:
        programs = [machines[machine] for machines in (evaluations, *others.evaluations)]
        workers = SizedWorkers(programs, Mailbox(channel), NAMES)
        workers.first.states.load(values.__getitem__)
        return score(workers, task, data, 1)

    found = MemoryNetwork().run({n: lambda channel, m=m: role(m, channel) for m, n in enumerate(NAMES)})  # type: ignore[misc]
    (cut_scores,) = [one for one in found.values() if one is not None]
    assert (cut_scores.loss, cut_scores.samples) == (pytest.approx(losses / 50, rel=1e-6), 50)
    assert (cut_scores.correct is None) == (name != "prototypes")
    assert cut_scores.correct == scores.correct


def classification(**more: Any) -> Task:
    return Task("any", nn.Identity, nn.functional.cross_entropy, make_example_batches(((3,),), classes=3), **more)


LOGITS, CLASSES = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), (torch.tensor([0, 2]),)


def scored(task: Task, *, count: int = 2) -> Scores:
    scorer = Scorer(task)
    scorer.add(LOGITS, CLASSES, size=2, count=count)
    return scorer.finish()


def test_functions_are_means_over_samples_and_objects_collect() -> None:
    metrics = {"largest": lambda outputs, classes: outputs.max(), "perplexity": Perplexity()}
    scores = scored(classification(metrics=metrics))
    loss = float(nn.functional.cross_entropy(LOGITS, CLASSES[0]))
    assert (scores.correct, scores.accuracy) == (1, 0.5)
    assert scores.loss == pytest.approx(loss)
    assert scores.metrics == {"largest": 2.0, "perplexity": pytest.approx(math.exp(loss))}
    assert scored(classification(metrics=metrics), count=1).metrics["perplexity"] == pytest.approx(
        math.exp(float(nn.functional.cross_entropy(LOGITS[:1], CLASSES[0][:1])))
    )  # an object begins anew in every evaluation


def test_a_metric_that_raises_is_named_with_its_line() -> None:
    def broken(outputs: Tensor, classes: Tensor) -> float:
        raise KeyError("no such class")

    with pytest.raises(BadInput, match=r"E315: metric 'broken' of task any fails at .*test_scores.py:") as caught:
        scored(classification(metrics={"broken": broken}))
    assert "no such class" in caught.value.facts


def test_a_loss_that_wants_what_training_gives_leaves_the_rest() -> None:
    def of_two(outputs: tuple[Tensor, Tensor], classes: Tensor) -> Tensor:
        main, auxiliary = outputs
        return nn.functional.cross_entropy(main + auxiliary, classes)

    scorer = Scorer(replace(classification(), loss=of_two))
    scorer.add(torch.cat([LOGITS, LOGITS]), (torch.cat([CLASSES[0]] * 2),), size=4, count=4)
    scores = scorer.finish()
    assert (scores.loss, scores.correct) == (None, 2)
    assert "too many values to unpack" in scorer.failure


@pytest.mark.parametrize("name", ["accuracy", "test_loss", "", "two\nlines", 3])
def test_names_of_what_is_measured_anyway_or_cannot_be_printed_are_refused(name: Any) -> None:
    with pytest.raises(TaskError, match=f"a metric called {re.escape(repr(name))}"):
        classification(metrics={name: Perplexity()})


def test_metrics_have_names_and_are_called() -> None:
    with pytest.raises(TaskError, match=r"has metrics=\["):
        classification(metrics=[Perplexity()])
    with pytest.raises(TaskError, match="metric 'mine' of task 'any' is 3"):
        classification(metrics={"mine": 3})


def test_perplexity_counts_targets_and_not_batches() -> None:
    metric = Perplexity()
    logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[1, 2, -100, 3], [0, -100, -100, -100], [6, 5, 4, 3]])
    for row in range(3):
        metric.update(logits[row], targets[row])
    expected = math.exp(float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())))
    assert metric.compute() == pytest.approx(expected)
    metric.reset()
    metric.update(torch.tensor([[0.0, 2000.0]]), torch.tensor([0]))
    assert metric.compute() == math.inf


def test_a_loss_that_fails_on_a_later_batch_is_no_loss_that_is_not_there() -> None:
    scorer = Scorer(classification())
    outputs = torch.zeros(4, 3)
    scorer.add(outputs, (torch.tensor([0, 1, 2, 0]),), size=4, count=4)
    with pytest.raises(BadInput, match="the loss of task any on some test samples fails: IndexError"):
        scorer.add(outputs, (torch.tensor([0, 1, 7, 0]),), size=4, count=4)


@pytest.mark.parametrize(
    ("value", "said"), [("much", "'much'"), (None, "None"), (torch.zeros(3), r"a tensor of shape \(3,\)")]
)
def test_a_metric_gives_a_number(value: Any, said: str) -> None:
    scorer = Scorer(replace(classification(), metrics={"mine": lambda output, target: value}))
    with pytest.raises(BadInput, match=rf"metric 'mine' of task any gives {said}") as caught:
        scorer.add(torch.zeros(4, 3), (torch.tensor([0, 1, 2, 0]),), size=4, count=4)
    assert caught.value.fix == "return one number, the mean over the batch"
