"""Pins: whom they name, and which are refused."""

import pytest
import torch
from example_graphs import chain, mlp_block
from torch import Tensor, nn

from cutset.errors import Infeasible, UsageError
from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import check_cut
from cutset.partition.ir.graph import Graph
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.to_cut import cut_from_placement
from cutset.partition.planner.pins import resolve_pins

GRAPH = mlp_block(8, 4, 16)


class Twice(nn.Module):
    """A batch norm that is used twice: both uses overwrite its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.outer(self.norm(self.inner(x))))


def twice() -> Graph:
    return capture(Twice(), lambda y: y.mean(), [torch.zeros(4, 5)])[0]


@pytest.mark.parametrize(
    ("pin", "found"),
    [
        ("1.up=1", ["linear_1"]),
        ("1=1", ["layer_norm", "linear_1", "relu", "linear_2", "add"]),
        ("1.*=1", ["layer_norm", "linear_1", "linear_2"]),
        ("linear_2=1", ["linear_2"]),
        ("linear*=1", ["linear", "linear_1", "linear_2"]),
        ("*.down.bias=1", ["linear_2"]),
        ("mean=1", ["mean"]),
        ("*=1", [op.name for op in GRAPH.ops]),
    ],
)
def test_a_pin_names_modules_operators_or_parameters(pin: str, found: list[str]) -> None:
    assert resolve_pins(GRAPH, uniform_cluster(3), [pin]) == dict.fromkeys(found, 1)


def test_machines_go_by_name_or_number() -> None:
    cluster = Cluster((Machine("big"), Machine("1"), Machine("small")))
    assert resolve_pins(GRAPH, cluster, ["linear=big", "linear_1=1", "linear_2=2", "mean=small"]) == {
        "linear": 0,
        "linear_1": 1,
        "linear_2": 2,
        "mean": 2,
    }


def test_pins_may_agree() -> None:
    assert resolve_pins(GRAPH, uniform_cluster(2), ["linear=1", "linear=machine 1"]) == {"linear": 1}


def test_the_last_equals_sign_parts_the_glob_from_the_machine() -> None:
    with pytest.raises(UsageError, match="'a=b=1' matches no module"):
        resolve_pins(GRAPH, uniform_cluster(2), ["a=b=1"])


def test_no_pins_pin_nothing() -> None:
    assert resolve_pins(GRAPH, uniform_cluster(2), []) == {}


@pytest.mark.parametrize("pin", ["linear", "", "=", "=1", "linear="])
def test_what_is_no_pin_is_refused(pin: str) -> None:
    with pytest.raises(UsageError, match="is no pin") as error:
        resolve_pins(GRAPH, uniform_cluster(2), [pin])
    assert error.value.code == "E204"


@pytest.mark.parametrize("name", ["2", "-1", "machine 2", "1.0", "nowhere"])
def test_an_unknown_machine_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(UsageError, match="there are machine 0, machine 1") as error:
        resolve_pins(GRAPH, uniform_cluster(2), [f"linear={name}"])
    assert error.value.code == "E205"


def test_a_pin_that_matches_nothing_is_refused_with_what_comes_near() -> None:
    with pytest.raises(UsageError, match="matches no module, operator or parameter") as error:
        resolve_pins(GRAPH, uniform_cluster(2), ["liner_1=1"])
    assert (error.value.code, error.value.fix) == ("E207", "--pin 'linear_1=1'")


def test_pins_that_contradict_each_other_are_both_named() -> None:
    with pytest.raises(UsageError, match=r"'1\.up=0' and 'linear\*=1' put operator linear_1 on two machines") as error:
        resolve_pins(GRAPH, uniform_cluster(2), ["1.up=0", "linear*=1"])
    assert error.value.code == "E206"


def test_more_than_a_machine_can_hold_is_refused_with_the_largest() -> None:
    cluster = Cluster((Machine("desk"), Machine("thimble", memory_bytes=3 * 4 * 32 * 33 - 1)))
    graph = chain(16, 32, 32, 8)
    assert resolve_pins(graph, cluster, ["linear_1=desk"]) == {"linear_1": 0}
    with pytest.raises(Infeasible, match=r"on thimble, which has 12671; the largest is 1\.weight with 12288") as error:
        resolve_pins(graph, cluster, ["linear_1=thimble", "linear_2=thimble"])
    assert error.value.code == "E407"


def test_what_overwrites_a_buffer_is_pinned_with_what_else_does() -> None:
    graph = twice()
    norms = [op.name for op in graph.ops if "batch_norm" in op.target]
    assert len(norms) == 2
    for norm in norms:
        found = resolve_pins(graph, uniform_cluster(2), [f"{norm}=1"])
        assert {name: found[name] for name in norms} == dict.fromkeys(norms, 1)
    with pytest.raises(UsageError, match="which the step overwrites") as error:
        resolve_pins(graph, uniform_cluster(2), [f"{norms[0]}=0", f"{norms[1]}=1"])
    assert error.value.code == "E206"


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("machine", [0, 2])
@pytest.mark.parametrize("number", [0, 1])
def test_pinned_operators_are_where_they_are_pinned_in_the_plan(machine: int, number: int) -> None:
    graph = twice()
    name = [op.name for op in graph.ops if "batch_norm" in op.target][number]
    cut = cut_from_placement(plan_placement(graph, uniform_cluster(3), model="m", pins=[f"{name}={machine}"]), graph)
    check_cut(graph, cut)
    assert {at for _, at in cut.boxes[name]} == {machine}
