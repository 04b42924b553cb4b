"""What a predicted step hangs on, and where that comes from, in words."""

from dataclasses import replace

from cutset.partition.cluster.machines import Cluster, Machine, SharedCores, uniform_cluster
from cutset.tools.probe.confidence import describe_confidence
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import DESKTOP, HERE, PlanRequest
from cutset.tools.task.plan_task import plan_task

SPEC = TaskSpec("cutset.models:digits")


def describe(cluster: Cluster, source: str) -> str:
    request = PlanRequest(machines=2, cluster=source)
    return describe_confidence(plan_task(capture_task(SPEC), SPEC, request, cluster), cluster, request)


def test_on_a_slow_network_it_hangs_on_messages_and_these_are_guessed():
    said = describe(uniform_cluster(2), DESKTOP)
    assert said.startswith("The predicted step hangs on messages (")
    assert "a guess: a desktop's constants" in said


def test_on_a_slow_machine_it_hangs_on_what_it_computes():
    slow = replace(uniform_cluster(2).machines[0], flops_per_s=1e6, ratios={"another": (1.0, 1.0)})
    cluster = Cluster((replace(slow, name="a"), replace(slow, name="b")), 1e12, 1e-9)
    said = describe(cluster, HERE)
    assert said.startswith("The predicted step hangs on matrix products (")
    assert "a guess: the speed of matrix products" in said
    assert "as in lab.toml" in describe(cluster, "lab.toml")


def test_where_machines_copy_what_they_send_it_hangs_on_how_fast_that_is():
    machine = Machine("m", flops_per_s=1e15, ratios={"another": (1.0, 1.0)})
    machines = tuple(replace(machine, name=name) for name in "ab")
    for copies_per_s, is_named in ((1e3, True), (1e12, False)):
        cluster = Cluster(machines, 1e12, 1e-9, shared=(SharedCores((0, 1), 2, copies_per_s=copies_per_s),))
        assert ("the network's bandwidth" in describe(cluster, HERE)) == is_named


def test_machines_that_the_plan_does_not_name_say_nothing():
    request = PlanRequest(machines=2, cluster=HERE)
    planned = plan_task(capture_task(SPEC), SPEC, request, uniform_cluster(2))
    assert describe_confidence(planned, Cluster((Machine("x"), Machine("y"))), request) == ""
