"""What is said of all roles of a run: in order of their names, and of many no more than is read."""

import json

from long_metrics import make_statuses

from cutset.tools.run_listener import MAX_LINKED
from cutset.tools.training.supervision import FEW_ROLES, shorten_statuses


def test_few_roles_say_to_whom_they_send() -> None:
    said = make_statuses(9)
    assert list(shorten_statuses(said)) == sorted(said)
    assert shorten_statuses(said) == said


def test_many_roles_say_what_they_send_to_all() -> None:
    links = {f"shard-{number}": 1000 + number for number in range(16)}
    said = {f"worker-{number}.0": {"step": 3, "links": links} for number in range(MAX_LINKED)}
    said |= {"shard-0": {"step": 3, "links": {}}, "worker-99.0": {}}
    shortened = shorten_statuses(said)
    assert shortened["worker-0.0"] == {"step": 3, "links": {"others": sum(links.values())}}
    assert (shortened["shard-0"], shortened["worker-99.0"]) == ({"step": 3, "links": {}}, {})
    assert said["worker-0.0"]["links"] == links, "what was said is left as it is"


def test_eighty_roles_write_no_more_in_a_day_than_eight() -> None:
    few = make_statuses(10**5)
    many = {f"{name}+{copy}": one for copy in range(10) for name, one in few.items()}
    bytes_a_second = len(json.dumps(shorten_statuses(few)))
    assert len(json.dumps(shorten_statuses(many))) / (len(many) / FEW_ROLES) < bytes_a_second
