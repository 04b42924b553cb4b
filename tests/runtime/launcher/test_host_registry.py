"""Hosts, their keys, and who may be started where, when one joins."""

from typing import Any

from cutset.runtime.channel.message import LAUNCHER
from cutset.runtime.hosts.host import Role
from cutset.runtime.launcher.host_registry import HostRegistry


class FakeHost:
    """A host with a key of its own."""

    def __init__(self, name: str, public_key: str) -> None:
        self.name, self.public_key = name, public_key
        self.address, self.ports = "127.0.0.1", ""


def fake(name: str, public_key: str) -> Any:
    return FakeHost(name, public_key)


def test_a_host_may_be_used_once_all_roles_know_its_key() -> None:
    registry = HostRegistry([fake("a", "key of a")])
    newcomer = fake("b", "key of b")
    registry.join(newcomer, ["w0", "w1", "w2"])
    assert registry.unknown_keys("w0") == {"b": "key of b"}
    assert registry.unknown_keys("other") == {}
    registry.confirm("w0", ["b"])
    registry.forget(["w1"])
    assert registry.unknown_keys("w0") == {}
    assert registry.take_joined() == []
    registry.confirm("w2", ["b", "nobody"])
    assert registry.take_joined() == [newcomer]
    assert registry.take_joined() == []


def test_the_key_of_a_lost_host_opens_nothing_once_another_has_its_name() -> None:
    registry = HostRegistry([fake("a", "old"), fake("b", "key of b")])
    registry.register([Role("w0", "m:f", host="b"), Role("w1", "m:f")])
    again = fake("a", "new")
    registry.join(again, [])
    assert registry.take_joined() == [again]
    assert registry.host_of(Role("w2", "m:f", host="a")) is again
    allowed = registry.keys(LAUNCHER).allowed
    assert {name: allowed[name] for name in "ab"} == {"a": "new", "b": "key of b"}
    assert registry.keys("b").allowed == allowed
    assert registry.key_owners == {"w0": "b", "w1": "a"}
    setup = registry.make_assignment(Role("w2", "m:f"), job="job", launcher="tcp://x", start_timeout_s=1.0)
    assert (setup.keys.public, setup.keys.secret, setup.keys.allowed) == ("new", "", allowed)
