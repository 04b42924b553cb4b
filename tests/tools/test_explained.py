"""Where the time of a step went, and what is said of it."""

import msgspec
import pytest
from recording import exchange, one_after_another

from cutset.runtime.worker.trace import Span
from cutset.tools.analysis.bottleneck import Explanation, MachineTime, SlowestLink, explained, in_words

NAMES = ["left", "right"]


def explanation() -> Explanation:
    found = explained(exchange(6), NAMES, predicted_s=4.0)
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
    found = explained([first, [*second[:4], early, second[5]]], NAMES, predicted_s=0.0)
    assert found is not None
    assert (found.machines[0].late, found.machines[0].on_links) == (0.0, pytest.approx(0.6))


def test_a_wait_without_a_message_is_nobodys() -> None:
    mine = [Span("wait", 1, 0.0, 3.0), Span("step", 1, 0.0, 4.0)]
    found = explained([mine], ["alone"], predicted_s=0.0)
    assert found is not None
    assert found.machines == [MachineTime("alone", 0.0, 0.75, 0.0, 0.25, -1)]
    assert found.slowest is None


def test_time_between_steps_leaves_tests_out() -> None:
    spans = one_after_another(exchange(6, 0.0), exchange(7, 11.0), exchange(8, 41.0))
    always, tested = (explained(spans, NAMES, predicted_s=0.0, evaluate_every=every) for every in (0, 8))
    assert always is not None
    assert tested is not None
    assert always.between_s == pytest.approx((4.0 + 20.0) / 2)
    assert tested.between_s == pytest.approx((1.0 + 4.0) / 2), "the test after step 7 does not count"


def test_the_words_name_the_machine_that_waited_and_for_whom() -> None:
    step, machines, link = in_words(explanation())
    assert step == "A step took 10 s, 2.5 times the predicted 4 s."
    assert machines == (
        "The machines computed 30 % to 35 % of it and had other work, such as messages, for 5 % to 10 %; "
        "left waited 60 %, mostly until right had sent."
    )
    assert link == "The slowest link is right → left: 2 s of waiting for its 60 B."


def test_a_slow_link_is_blamed_for_waits_on_it() -> None:
    slow = msgspec.structs.replace(explanation(), predicted_s=10.2, between_s=0.5)
    waiting = msgspec.structs.replace(slow.machines[0], late=0.1, on_links=0.5)
    said = in_words(msgspec.structs.replace(slow, machines=[waiting, slow.machines[1]]))
    assert said[0] == (
        "A step took 10 s, as predicted (10.2 s); 500 ms more passed between two steps, for parameters and data."
    )
    assert said[1].endswith("left waited 60 %, mostly while messages of right were under way.")


def test_what_takes_little_is_not_said() -> None:
    found = explanation()
    idle = [msgspec.structs.replace(m, late=0.02, on_links=0.0, other=0.01) for m in found.machines]
    quiet = msgspec.structs.replace(found, machines=idle, predicted_s=0.0, slowest=SlowestLink(0, 1, 0.4, 9))
    assert in_words(quiet) == ["A step took 10 s.", "The machines computed 30 % to 35 % of it."]
    alone = msgspec.structs.replace(quiet, machines=idle[:1], slowest=None)
    assert in_words(alone)[1] == "left computed 35 % of it."


def test_nothing_recorded_is_not_explained() -> None:
    assert explained([[], []], NAMES, predicted_s=1.0) is None
