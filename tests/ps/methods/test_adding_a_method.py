"""The method that docs/adding_a_method.md shows works as it stands there."""

import importlib.util
import re
from pathlib import Path

import msgspec
import pytest
import torch
from places import ROOT
from regression import batch_of, one_after_the_other, run, staleness

from cutset.errors import UsageError
from cutset.ps.methods import registry as methods
from cutset.ps.name_and_options import parse_name_and_options
from cutset.ps.optimizers.standard import SGD, Adagrad

PAGE = ROOT / "docs" / "adding_a_method.md"
FILE, REGISTERED = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def shown(tmp_path):
    """The class of the page, imported as the module that the page says it is."""
    place = tmp_path / "large_batch.py"
    place.write_text(FILE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("cutset.ps.methods.large_batch", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LargeBatch


def test_it_takes_35_lines():
    assert len(FILE.splitlines()) + len(REGISTERED.splitlines()) <= 35


@pytest.mark.parametrize("optimizer", [SGD(0.02), Adagrad(0.1)])
def test_it_trains_on_larger_batches(shown, optimizer):
    values, statistics, reports = run(shown(every=3), optimizer, steps=20)
    batches = [
        [row for step in range(first, min(first + 3, 20)) for row in batch_of(step)] for first in range(0, 20, 3)
    ]
    torch.testing.assert_close(values, one_after_the_other(optimizer, batches), rtol=0, atol=1e-10)
    assert len(reports[0]) == 20
    assert staleness(statistics)["max"] == 0


@pytest.mark.run
def test_several_replicas_train(shown):
    values, statistics, _ = run(shown(every=2), SGD(0.03), steps=400, replicas=3)
    assert (values - 1).abs().max() < 0.05
    assert {piece["pushes"] for shard in statistics for piece in shard["slices"]} == {3 * 200}


def test_it_is_chosen_by_name_and_travels(shown):
    found = parse_name_and_options("method", "large_batch:every=8", {"large_batch": shown}, {})
    assert found == shown(every=8)
    assert msgspec.convert(msgspec.to_builtins(found), type=methods.AnyMethod | shown) == found
    with pytest.raises(UsageError, match="every is 0"):
        shown(every=0)


def test_it_is_registered_as_the_page_says(shown):
    """The union of the page is one that registry.py could have, and the names are made from it."""
    union = re.search(r"^AnyMethod = (.*)$", REGISTERED, re.MULTILINE)
    assert union
    for name in union[1].split(" | "):
        assert name == "LargeBatch" or methods.METHODS[name.lower()].__name__ == name
    assert "get_args(AnyMethod)" in Path(methods.__file__).read_text(encoding="utf-8")
