"""What of a step was mispredicted: factors that the spans were made with come out."""

import itertools

import msgspec
import pytest
import torch
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Cluster, Machine
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.trace import Span
from cutset.tools.analysis.mispredictions import Mispredictions, describe_mispredictions, find_mispredictions

MACHINE = Machine("m", flops_per_s=1e9, memory_bandwidth=1e9, segment_s=1e-3, segment_back_s=2e-3, message_s=1e-4)
CLUSTER = Cluster((MACHINE, MACHINE), 1e6, 1e-3)
TRUE = {"contraction": 2.0, "elementwise": 0.5}


def make_programs() -> list[Program]:
    """Layers that lie on two machines in turn, so that segments mix the two classes in different parts."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU())
    graph, _ = capture(model, lambda y: y.sum(), [torch.zeros(32, 64)])
    places = itertools.chain((0, 0, 1), itertools.repeat(0))
    return programs(
        lower_cut(graph, Cut(2, {op.name: [(op.nest.box, next(places))] for op in graph.ops})), training=True
    )


def make_spans(found: list[Program]) -> list[list[Span]]:
    spans = []
    for program in found:
        costs, own, at_s = CostModel(program.tensors), list[Span](), 0.0
        for backward in (False, True):
            for part, segment in enumerate(program.segments):
                seconds = MACHINE.segment_back_s if backward else MACHINE.segment_s
                for step in segment.steps:
                    work = costs.work(program.ops[step.op], step.box)
                    seconds += TRUE.get(work.kind, 1.0) * work.seconds(MACHINE)[backward]
                own.append(Span("backward" if backward else "forward", 1, at_s, at_s + seconds, part=part))
                at_s += seconds
        spans.append([*own, Span("step", 1, 0.0, at_s)])
    return spans


def test_the_factors_of_classes_are_found():
    found = make_programs()
    wrong = find_mispredictions(found, make_spans(found), CLUSTER)
    assert wrong is not None
    assert wrong.ratios["contraction"] == (pytest.approx(2.0, rel=0.1), pytest.approx(2.0, rel=0.1))
    assert wrong.ratios["elementwise"][0] < 0.8
    assert sum(part for *_, part in wrong.classes.values()) == pytest.approx(1.0)
    assert (wrong.link, wrong.messages) == (None, 0)


def test_gradients_that_backward_left_count_as_part_of_it():
    found = make_programs()
    spans = make_spans(found)
    products = [
        [n for n, step in enumerate(one.steps) if program.ops[step.op].sharding_rule == "aten.linear"]
        for program in found
        for one in program.segments
    ]
    left = iter(products)
    deferring = [
        msgspec.structs.replace(
            program,
            segments=tuple(msgspec.structs.replace(s, deferred=tuple(next(left)), after=0) for s in program.segments),
        )
        for program in found
    ]

    def divide(program: Program, span: Span) -> list[Span]:
        """Half of what the operators take in backward is left, with a call for each product."""
        calls_s = MACHINE.segment_back_s * len(program.segments[span.part].deferred)
        if span.kind != "backward" or not calls_s:
            return [span]
        middle = (span.start_s + span.stop_s) / 2
        rest = msgspec.structs.replace(span, kind="weights", start_s=middle, stop_s=span.stop_s + calls_s)
        return [msgspec.structs.replace(span, stop_s=middle), rest]

    parted = [
        [part for span in own for part in divide(program, span)] for program, own in zip(deferring, spans, strict=True)
    ]
    wrong, whole = find_mispredictions(deferring, parted, CLUSTER), find_mispredictions(found, spans, CLUSTER)
    assert wrong is not None
    assert whole is not None
    assert any(span.kind == "weights" for own in parted for span in own)
    assert wrong.ratios["contraction"] == pytest.approx(whole.ratios["contraction"])


def test_messages_that_were_waited_for_are_compared():
    found = make_programs()
    left, right = make_spans(found)
    predicted = 1e-3 + 2e-4 + 1000 / 1e6
    sent = Span("send", 1, 0.0, 0.0, part=0, peer=1, bytes=1000, what="forward")
    wait = Span("wait", 1, 0.0, 3 * predicted)
    taken = Span("receive", 1, 3 * predicted, 3 * predicted, part=0, peer=0, bytes=1000, what="forward")
    wrong = find_mispredictions(found, [[sent, *left], [wait, taken, *right]], CLUSTER)
    assert wrong is not None
    assert (wrong.link, wrong.messages) == (pytest.approx(3.0), 1)


def test_without_a_recorded_step_or_with_other_machines_nothing_is_said():
    found = make_programs()
    assert find_mispredictions(found, [[], []], CLUSTER) is None
    assert find_mispredictions(found, make_spans(found), Cluster((MACHINE,))) is None


def test_only_what_is_off_and_has_weight_is_said():
    wrong = Mispredictions({"loss": (2.0, 1.0, 0.5), "view": (9.0, 9.0, 0.01), "pooling": (1.1, 0.9, 0.49)}, 0.5, 3)
    (said,) = describe_mispredictions(wrong)
    assert said == (
        "Mispredicted, measured over predicted: the loss (50 % of the computing): forward 2.0 x; messages: 0.5 x."
    )
    assert describe_mispredictions(msgspec.structs.replace(wrong, classes={}, link=1.0)) == []
