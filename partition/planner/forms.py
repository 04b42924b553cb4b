"""Plans a model with recurrent nets in both forms, whole and unrolled, and takes the better plan.

Whole, torch's operator for all time steps is one block, which is fastest on one machine. Unrolled, the hidden units and
the layers can be cut, at the price of messages in each time step. The simulated step decides.
"""

from dataclasses import dataclass, replace
from typing import Unpack

from ...errors import Infeasible
from ..cluster.machines import Cluster
from ..ir.graph import Graph
from .plan import TIME, PlanningOptions, PlanningResult
from .planner import find_plan


@dataclass(frozen=True)
class FormChoice:
    """The better plan, whether its graph is the unrolled one, and the plan of the other form, if there is one.

    one_form: whether the model has no other form.
    """

    result: PlanningResult
    unrolled: bool
    runner_up: PlanningResult | None
    one_form: bool = False


def find_form(whole: Graph, unrolled: Graph, cluster: Cluster, **options: Unpack[PlanningOptions]) -> FormChoice:
    """Plan both graphs of a model, and choose; the comparison with one machine is with the whole form there.

    Raises as `find_plan` does for the whole form, where no form has a plan.
    """
    plans, failures = list[PlanningResult | None](), list[Infeasible]()
    for graph, machines in ((whole, cluster), (unrolled, cluster.for_unrolled_form())):
        try:
            plans.append(find_plan(graph, machines, **options))
        except Infeasible as error:
            plans.append(None)
            failures.append(error)
    first, second = plans
    if second is None:
        if first is None:
            raise failures[0]
        return FormChoice(first, False, None)
    if first is None:
        return FormChoice(second, True, None)
    second = replace(second, one_machine=first.one_machine)
    objective, all_used = options.get("objective", TIME), not options.get("fewer", False)
    ranks = [(plan.shortage != "", plan.winner.rank(objective, all_used=all_used)) for plan in (first, second)]
    if ranks[1] < ranks[0]:
        return FormChoice(second, True, first)
    return FormChoice(first, False, second)
