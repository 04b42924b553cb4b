"""`HostRegistry`: the hosts of a run, with the keys of their roles. A host may join, or come back, while roles run."""

import sys
from collections.abc import Iterable, Sequence

from ..channel.bind import join_ports
from ..channel.curve import Keys, make_keys
from ..channel.message import LAUNCHER
from ..hosts.assignment import Assignment
from ..hosts.host import Host, Role

HEARTBEAT_INTERVAL_S = 0.5


class HostRegistry:
    """The hosts of one run, by name; the first is that of roles which name none.

    key_owners: the host of each role that there was, whose keys it holds.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = {host.name: host for host in hosts}
        remote = {host.name: host.public_key for host in hosts if host.public_key}
        own = [name for name in self._hosts if name not in remote]
        self._keys = make_keys([LAUNCHER, *own], others=remote)
        self._unaware: dict[str, set[str]] = {}  # by name of a host that joins, roles that may not know its key yet
        self.key_owners: dict[str, str] = {}

    @property
    def first(self) -> Host:
        """The host of roles that name none."""
        return next(iter(self._hosts.values()))

    def host_of(self, role: Role) -> Host:
        """Return the host of a role."""
        return self._hosts[role.host or self.first.name]

    def keys(self, owner: str) -> Keys:
        """Return the pair of a host or the launcher; the secret key of a host that made its pair itself is ""."""
        return self._keys[owner]

    def register(self, roles: Iterable[Role]) -> None:
        """Note where roles are started."""
        self.key_owners |= {role.name: self.host_of(role).name for role in roles}

    def make_assignment(self, role: Role, *, job: str, launcher: str, start_timeout_s: float) -> Assignment:
        """Return what the process of a role has to do. launcher: its end point for this role."""
        host = self.host_of(role)
        return Assignment(
            name=role.name,
            job=job,
            entry=role.entry,
            setup=role.setup,
            keys=self._keys[host.name],
            key_owners=self.key_owners,
            launcher=launcher,
            host=join_ports(host.address, host.ports),
            path=sys.path,
            start_timeout_s=start_timeout_s,
            heartbeat_interval_s=HEARTBEAT_INTERVAL_S,
        )

    def join(self, host: Host, running: Iterable[str]) -> None:
        """Let in a host with a key of its own, in the place of a lost one of its name.

        The key of the lost one is no longer valid. running: the roles that have to know of it before any role may be
        started there, since they refuse a key that they do not know for good.
        """
        self._hosts[host.name] = host
        allowed = self._keys[LAUNCHER].allowed
        allowed[host.name] = host.public_key
        self._keys[host.name] = Keys(host.public_key, "", allowed)
        self._unaware[host.name] = set(running)

    def unknown_keys(self, role: str) -> dict[str, str]:
        """Return the public keys, by host, that a role may not know yet."""
        return {owner: self._keys[owner].public for owner, unaware in self._unaware.items() if role in unaware}

    def confirm(self, role: str, owners: Iterable[str]) -> None:
        """Note that a role knows the keys of these hosts."""
        for owner in owners:
            self._unaware.get(owner, set()).discard(role)

    def forget(self, roles: Iterable[str]) -> None:
        """Note that roles have ended."""
        for unaware in self._unaware.values():
            unaware.difference_update(roles)

    def take_joined(self) -> list[Host]:
        """Return the hosts that joined and that all roles know of, each once."""
        known = [name for name, unaware in self._unaware.items() if not unaware]
        for name in known:
            del self._unaware[name]
        return [self._hosts[name] for name in known]

    def __repr__(self) -> str:
        return f"HostRegistry({list(self._hosts)})"
