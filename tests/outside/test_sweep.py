"""The sweep: what it chooses, how it makes configurations small, what it finds, and what it calls a failure."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from outside import need
from sweep import processes
from sweep.__main__ import leave_out_done, read_results, write_results
from sweep.examination import examine
from sweep.page import render_page
from sweep.plain import OutsideTheSweepError, find_subject
from sweep.registry import list_trials, read_entries
from sweep.selection import Entry, Trial, choose_smallest, interleave, name_family
from sweep.small_configuration import SIZES, shrink
from sweep.verdict import CAPTURED, EXACT, INEXACT, group_reason, judge
from torch import Tensor, nn

pytestmark = [pytest.mark.light, pytest.mark.timeout(600)]


def layer(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(width, width)


def test_a_family_is_the_letters_of_a_name_within_a_module() -> None:
    assert name_family("timm.models.resnet", "resnet18d") == name_family("timm.models.resnet", "resnet200")
    assert name_family("timm.models.resnet", "resnext50") != name_family("timm.models.resnet", "resnet18d")


def test_the_model_with_the_fewest_parameters_stands_for_its_family() -> None:
    builders = [("a", "a3", layer(3)), ("a", "a2", layer(2)), ("b", "b9", layer(9)), ("a", "a2x", layer(2))]
    assert list(choose_smallest(builders)) == [("a", "a2"), ("b", "b9")]


def test_the_libraries_take_turns() -> None:
    a, b = ([Entry(name, str(i)) for i in range(count)] for name, count in (("a", 3), ("b", 1)))
    assert [entry.key for entry in interleave([a, b])] == ["a/0", "b/0", "a/1", "a/2"]


def test_at_least_three_hundred_models_are_chosen() -> None:
    keys = [entry.key for entry in read_entries(["torchvision", "timm", "transformers"], 1)]
    assert len(set(keys)) == len(keys) >= 300


def test_a_model_is_tried_again_that_was_tried_before_a_day(tmp_path: Path) -> None:
    entries = [Entry("timm", name) for name in ("a", "b", "c")]
    old, new = {"key": "timm/a"}, [{"key": f"timm/{name}", "day": f"2026-01-0{day}"} for name, day in ("b1", "c2")]
    file = tmp_path / "results.jsonl"
    write_results(file, [old, *new, old | {"day": "2026-01-03"}])
    results = read_results(file)
    assert results == [old | {"day": "2026-01-03"}, *new]
    assert leave_out_done(entries, results, "") == []
    assert leave_out_done(entries, results, "2026-01-02") == [entries[1]]
    assert leave_out_done(entries, [old, *new], "2026-01-01") == [entries[0]]


def test_a_configuration_is_made_small_by_its_names() -> None:
    fields = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "vision_config": {"image_size": 224, "num_attention_heads": 12},
        "layer_types": ["full"] * 12,
        "eos_token_id": 50256,
        "id2label": {0: "x"},
        "hidden_act": "gelu",
    }
    small = shrink(fields, SIZES[0])
    assert small["hidden_size"] == 32
    assert small["num_hidden_layers"] == len(small["layer_types"]) == 2
    assert small["vision_config"] == {"image_size": 32, "num_attention_heads": 4}
    assert small["eos_token_id"] < 100
    assert (small["id2label"], small["hidden_act"]) == ({0: "x"}, "gelu")


def run(entry: Entry) -> dict[str, object]:
    """Examine an entry in this process."""
    subject = find_subject(list_trials(entry))
    facts: dict[str, object] = {"dtype": str(subject.dtype).removeprefix("torch.")}
    examine(subject, machines=(2, 3), tell=facts.update)
    return facts | {"outcome": "done"}


WRITTEN = ["GCN", "LSTM language model", "own statistics, in place", "sampling"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_model_is_cut_exactly(name: str) -> None:
    facts = run(Entry("written", name))
    assert judge(facts) == EXACT, facts["steps"]


@pytest.mark.parametrize("library", ["torchvision", "transformers"])
def test_a_model_of_a_library_is_cut_exactly(library: str) -> None:
    need(library)
    name = {"torchvision": "alexnet", "transformers": "bert"}[library]
    (entry,) = (entry for entry in read_entries([library], 1) if entry.name == name)
    facts = run(entry)
    assert judge(facts) == EXACT, facts["steps"]


def test_a_step_that_differs_is_not_exact() -> None:
    subject = find_subject(list_trials(Entry("written", "own statistics, in place")))
    wrong = {name: g + 1e-6 * g.abs().max() for name, g in subject.step.gradients.items()}
    facts: dict[str, object] = {"dtype": "float64", "outcome": "done"}
    examine(replace(subject, step=replace(subject.step, gradients=wrong)), machines=(2,), tell=facts.update)
    assert judge(facts) == INEXACT
    assert group_reason(facts) == "a cut differs from plain torch"


def test_without_machines_a_model_is_only_captured() -> None:
    facts: dict[str, object] = {"dtype": "float64", "outcome": "done"}
    examine(find_subject(list_trials(Entry("written", "GCN"))), machines=(), tell=facts.update)
    assert judge(facts) == CAPTURED
    assert "plans" not in facts


def test_the_first_trial_that_runs_is_taken_and_none_is_a_reason() -> None:
    def trial(says: str, width: int) -> Trial:
        return Trial(says, layer(3), lambda: {"": torch.randn(4, width)})

    assert find_subject([trial("wrong", 2), trial("right", 3)]).says == "right"
    with pytest.raises(OutsideTheSweepError, match="wrong: RuntimeError"):
        find_subject([trial("wrong", 2)])


class Waiting(nn.Module):
    """A model that takes for ever."""

    def forward(self, x: Tensor) -> Tensor:
        while True:
            time.sleep(1)


class Ending(nn.Module):
    """A model that ends its process."""

    def forward(self, x: Tensor) -> Tensor:
        os._exit(9)


def list_bad_trials(entry: Entry) -> Iterator[Trial]:
    kinds = {"waits": Waiting, "ends": Ending}
    yield Trial("as it is", kinds.get(entry.name, layer(3)), lambda: {"": torch.randn(4, 3)})


def test_a_model_that_hangs_or_dies_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.one_model.list_trials", list_bad_trials)
    entries = [Entry("written", name) for name in ("waits", "ends", "works")]
    found = processes.examine_all(entries, machines=(), jobs=2, timeout_s=30)
    assert {facts["key"]: judge(facts) for facts in found} == {
        "written/waits": "timeout",
        "written/ends": "died",
        "written/works": CAPTURED,
    }


def test_the_page_has_counts_and_each_reason_once() -> None:
    base = {"library": "written", "outcome": "refused", "code": "E320", "says": "as written"}
    rows = [base | {"key": f"written/{i}", "message": f"E320: at line {i}): aten.nonzero"} for i in range(2)]
    outside = {"key": "written/o", "library": "written", "outcome": "outside", "message": "no | way"}
    page = render_page([*rows, outside])
    assert "| refused | E320 aten.nonzero | 2: written/0, written/1 |" in page
    assert "| written/o | no / way |" in page
