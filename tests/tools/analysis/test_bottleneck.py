"""Where the time of a step went, and what is said of it."""

import msgspec
import pytest
from recording import exchange, one_after_another

from cutset.runtime.worker.trace import Span
from cutset.tools.analysis.bottleneck import Explanation, MachineTime, SlowestLink, describe_explanation, explain_steps

NAMES = ["left", "right"]


def explanation() -> Explanation:
    found = explain_steps(exchange(6), NAMES, predicted_s=4.0)
    assert found is not None
    return found


def test_waits_are_divided_at_the_moment_of_sending() -> None:
    found = explanation()
    left, right = found.machines
    assert left == MachineTime("left", *(pytest.approx(x) for x in (0.35, 0.4, 0.2, 0.05)), 1)
    assert right == MachineTime("right", *(pytest.approx(x) for x in (0.3, 0.2, 0.1, 0.1)), 0)
    assert found.slowest == SlowestLink(1, 0, 2.0, 60)
    assert (found.step_s, found.between_s) == (10.0, None)


def test_a_wait_whose_message_was_sent_before_is_all_on_the_link() -> None:
    first, second = exchange(6)
    early = msgspec.structs.replace(second[4], start_s=11.0, stop_s=11.0)
    found = explain_steps([first, [*second[:4], early, second[5]]], NAMES, predicted_s=0.0)
    assert found is not None
    assert (found.machines[0].late, found.machines[0].on_links) == (0.0, pytest.approx(0.6))


def test_a_wait_without_a_message_has_no_peer() -> None:
    mine = [Span("wait", 1, 0.0, 3.0), Span("step", 1, 0.0, 4.0)]
    found = explain_steps([mine], ["alone"], predicted_s=0.0)
    assert found is not None
    assert found.machines == [MachineTime("alone", 0.0, 0.75, 0.0, 0.25, -1)]
    assert found.slowest is None


def test_time_between_steps_is_without_evaluations() -> None:
    spans = one_after_another(exchange(6, 0.0), exchange(7, 11.0), exchange(8, 41.0))
    always, tested = (explain_steps(spans, NAMES, predicted_s=0.0, evaluate_every=every) for every in (0, 8))
    assert always is not None
    assert tested is not None
    assert always.between_s == pytest.approx((4.0 + 20.0) / 2)
    assert tested.between_s == pytest.approx((1.0 + 4.0) / 2), "the test after step 7 does not count"


def test_the_description_names_the_machine_that_waited_and_its_peer() -> None:
    step, machines, link = describe_explanation(explanation())
    assert step == "A step took 10 s, 2.5 times the predicted 4 s."
    assert machines == (
        "Of each step, machines spent 30 % to 35 % computing and 5 % to 10 % on other work such as messaging; "
        "left was idle 60 %, mostly waiting for right to send."
    )
    assert link == "The slowest link is right → left: 2 s of waiting for its 60 B, gradients included."


def test_a_slow_link_is_blamed_for_waits_on_it() -> None:
    slow = msgspec.structs.replace(explanation(), predicted_s=10.2, between_s=0.5)
    waiting = msgspec.structs.replace(slow.machines[0], late=0.1, on_links=0.5)
    said = describe_explanation(msgspec.structs.replace(slow, machines=[waiting, slow.machines[1]]))
    assert said[0] == ("A step took 10 s, as predicted (10.2 s); another 500 ms per step went to parameters and data.")
    assert said[1].endswith("left was idle 60 %, mostly waiting for data from right to arrive.")


def test_short_times_are_not_mentioned() -> None:
    found = explanation()
    idle = [msgspec.structs.replace(m, late=0.02, on_links=0.0, other=0.01) for m in found.machines]
    quiet = msgspec.structs.replace(found, machines=idle, predicted_s=0.0, slowest=SlowestLink(0, 1, 0.4, 9))
    assert describe_explanation(quiet) == ["A step took 10 s.", "Of each step, machines spent 30 % to 35 % computing."]
    alone = msgspec.structs.replace(quiet, machines=idle[:1], slowest=None)
    assert describe_explanation(alone)[1] == "Of each step, left spent 35 % computing."


def test_nothing_recorded_is_not_explained() -> None:
    assert explain_steps([[], []], NAMES, predicted_s=1.0) is None


def test_computing_that_took_longer_than_predicted_is_named() -> None:
    found = explain_steps(exchange(6), NAMES, predicted_s=4.0, busy_s=[3.4, 1.0])
    assert found is not None
    assert describe_explanation(found)[1] == "Computing alone took right 3 s of a step, where 1 s were predicted."
    found = explain_steps(exchange(6), NAMES, predicted_s=4.0, busy_s=[3.4, 2.9])
    assert found is not None
    assert describe_explanation(found) == describe_explanation(explanation()), "about as predicted"
