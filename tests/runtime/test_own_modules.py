"""The user's modules in a worker."""

import torch
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine
from cutset.partition.dataflow.dataflow import flow
from cutset.runtime.worker.leaf_modules import OwnModules
from cutset.runtime.worker.program import Program, programs


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))


def program(blocks: list[str]) -> Program:
    graph, _ = capture(model(), lambda y: y.sum(), [torch.ones(4, 3)], blocks=blocks)
    return programs(flow(graph, one_machine(graph)), training=True)[0]


def test_the_copy_has_no_values_and_the_callers_model_stays() -> None:
    mine = model()
    own = OwnModules(mine)
    block = own.block("1", training=True)
    assert all(tensor.is_meta for tensor in block.states.values())
    assert block.module is not mine[1]
    assert not any(tensor.is_meta for tensor in mine.state_dict().values())
    assert own.block("1", training=True) is block


def test_the_whole_model_is_in_the_mode_of_the_program() -> None:
    own = OwnModules(model().eval())
    for training in (True, False, True):
        assert [m.training for m in own.block("1", training=training).module.modules()] == [training] * 3


def test_only_blocks_by_hand_need_a_model() -> None:
    asked = []

    def given() -> nn.Module:
        asked.append(1)
        return model()

    assert OwnModules.where_needed([program([])], given) is None
    assert asked == []
    assert OwnModules.where_needed([program([]), program(["1"])], given) is not None
    assert asked == [1]
