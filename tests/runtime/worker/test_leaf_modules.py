"""The user's modules in a worker."""

import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.operators.step_module import StepModule
from cutset.runtime.worker.leaf_modules import LeafModules
from cutset.runtime.worker.program import Program, programs


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))


def step() -> StepModule:
    return StepModule(model(), sum_up)


def sum_up(y: Tensor) -> Tensor:
    return y.sum()


def program(blocks: list[str]) -> Program:
    graph, _ = capture(model(), sum_up, [torch.ones(4, 3)], leaf_modules=blocks)
    return programs(lower_cut(graph, one_machine_cut(graph)), training=True)[0]


def test_the_copy_has_no_values_and_the_callers_model_stays() -> None:
    mine = model()
    leaf_modules = LeafModules(StepModule(mine, sum_up))
    block = leaf_modules.get("1", training=True)
    assert all(tensor.is_meta for tensor in block.states.values())
    assert block.module is not mine[1]
    assert not any(tensor.is_meta for tensor in mine.state_dict().values())
    assert leaf_modules.get("1", training=True) is block


def test_the_whole_model_is_in_the_mode_of_the_program() -> None:
    leaf_modules = LeafModules(step().eval())
    for training in (True, False, True):
        assert [m.training for m in leaf_modules.get("1", training=training).module.modules()] == [training] * 3


def test_only_leaf_modules_need_a_model() -> None:
    asked = []

    def given() -> StepModule:
        asked.append(1)
        return step()

    assert LeafModules.where_needed([program([])], given) is None
    assert asked == []
    assert LeafModules.where_needed([program([]), program(["1"])], given) is not None
    assert asked == [1]


def test_parts_of_a_step_have_names() -> None:
    leaf_modules = LeafModules(step())
    assert isinstance(leaf_modules.get("(step)", training=True).module, StepModule)
    assert isinstance(leaf_modules.get("(step)", training=False).module, nn.Sequential)
    assert isinstance(leaf_modules.get("(model)", training=True).module, nn.Sequential)
    assert leaf_modules.get("(loss)", training=True).module(torch.ones(2)) == 2
