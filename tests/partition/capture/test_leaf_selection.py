"""Globs and the modules that they name."""

import pytest
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.leaf_selection import find_glob, select_leaf_modules


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.parts = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(self.gate(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(2, 2)
        self.alias = self.head
        self.extra = nn.ModuleDict({"0": nn.ReLU()})
        self.mixed = nn.ModuleList([nn.ReLU(), Layer()])


MODEL = Model()


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        ([], []),
        (["head"], ["head"]),
        (["alias"], ["head"]),
        (["layers.*"], ["layers.0", "layers.1", "layers.2"]),
        (["layers.[02]"], ["layers.0", "layers.2"]),
        (["layers.*.gate"], ["layers.0.gate", "layers.1.gate", "layers.2.gate"]),
        (["*"], ["layers.0", "layers.1", "layers.2", "head", "extra.0", "mixed.0", "mixed.1"]),
        (["head", "layers.1", "head"], ["layers.1", "head"]),
        (["layers.1.parts.0", "layers.*.parts"], ["layers.0.parts", "layers.1.parts", "layers.2.parts"]),
    ],
)
def test_the_outermost_modules_are_chosen_in_the_models_order(globs: list[str], names: list[str]) -> None:
    assert list(select_leaf_modules(MODEL, globs).names) == names


def test_a_glob_within_another_is_noted() -> None:
    found = select_leaf_modules(MODEL, ["layers.*.gate", "layers.?", "head"])
    assert found.names == ("layers.0", "layers.1", "layers.2", "head")
    (note,) = found.notes
    assert note == "--leaf-modules 'layers.*.gate' changes nothing: layers.0.gate is part of leaf module layers.0"
    assert select_leaf_modules(MODEL, ["layers.0", "layers.*.gate"]).notes == ()  # it names others besides


@pytest.mark.parametrize(
    ("glob", "said", "fix"),
    [
        ("layer.0.gate", "matches no module of the model; near it: layers.0.gate", "--leaf-modules 'layers.0.gate'"),
        ("heads", "near it: head", "--leaf-modules 'head'"),
        ("", "near it: layers.0, ", "--leaf-modules 'layers.0'"),
        ("zzz.*", "near it: layers.0, ", "--leaf-modules 'layers.0'"),
        ("layers", "names layers, which only holds modules and is never called", "--leaf-modules 'layers.*'"),
        ("extra", "only holds modules", "--leaf-modules 'extra.*'"),
    ],
)
def test_a_glob_without_a_module_is_refused_with_near_names(glob: str, said: str, fix: str) -> None:
    with pytest.raises(BadInput) as caught:
        select_leaf_modules(MODEL, ["head", glob])
    assert (caught.value.code, caught.value.fix) == ("E325", fix)
    assert said in caught.value.facts
    assert select_leaf_modules(MODEL, [fix.partition("'")[2][:-1]]).names


def test_a_model_without_modules_has_no_near_names() -> None:
    with pytest.raises(BadInput, match="it has no modules"):
        select_leaf_modules(nn.Linear(2, 2), ["x"])


@pytest.mark.parametrize(
    ("name", "glob"),
    [
        ("layers.1", "layers.*"),
        ("layers.1.gate", "layers.*.gate"),
        ("layers.1.parts.1", "layers.*.parts.1"),
        ("head", "head"),
        ("extra.0", "extra.0"),
        ("mixed.0", "mixed.0"),
        ("mixed.1.gate", "mixed.1.gate"),
    ],
)
def test_a_glob_for_a_module_and_its_like(name: str, glob: str) -> None:
    assert find_glob(MODEL, name) == glob
