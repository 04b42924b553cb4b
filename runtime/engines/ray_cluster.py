"""The engine ray: an actor on each node of a Ray cluster starts the agent there. Ray is an extra: cutset[ray].

Through Ray itself pass public keys only; the rest goes through a `Door`.
"""

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from ...errors import UsageError
from ..channel.curve import Keys
from ..joining.door import Door
from ..joining.join import Pass, join
from .joined_hosts import open_joined
from .open_hosts import Opened, check_enough

ROOM_S = 30.0  # for Ray to start the actors
REACH_S = 5.0


class AgentActor:
    """Starts an agent on the node where Ray has put it."""

    def __init__(self) -> None:
        public, secret = zmq.curve_keypair()
        self._public, self._secret = public.decode(), secret.decode()

    def public_key(self) -> str:
        """Return the key with which it will join."""
        return self._public

    def serve(self, endpoint: str, server: str) -> None:
        """Start the agent, and return when it has ended."""
        join(endpoint, Pass(server, self._public, self._secret))


class RayEngine:
    """The nodes of a Ray cluster; see `Engine`. address: of the cluster, by default the one that this machine is in."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name, self._address = name, address or "auto"
        self.notices = list[str]()

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Start an actor on every node; see `Engine`."""
        try:
            ray: Any = importlib.import_module("ray")
            scheduling: Any = importlib.import_module("ray.util.scheduling_strategies")
        except ImportError as error:
            raise UsageError(
                "E297", f"--on {self.name}: Ray is not installed", fix="pip install 'cutset[ray]'"
            ) from error
        self._check_reachable()
        if ray.is_initialized():
            facts = f"--on {self.name}: this process uses Ray already"
            raise UsageError("E297", facts, fix="ray.shutdown() before cutset.train")
        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            facts = f"--on {self.name}: no Ray cluster answers: {str(error).partition(chr(10))[0]}"
            raise UsageError("E297", facts, fix="ray start --head, or --on ray:ADDRESS:PORT") from error
        try:
            nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
            check_enough(self.name, "the cluster", nodes, least, fix="add nodes")
            launcher = ray.util.get_node_ip_address()
            places = [scheduling.NodeAffinitySchedulingStrategy(node_id=node, soft=False) for node in nodes]
            actors, publics = self._start_actors(ray, places)
            public, secret = (key.decode() for key in zmq.curve_keypair())
            with Door(Keys(public, secret, publics), launcher) as door:
                serving = [actor.serve.remote(door.endpoint, public) for actor in actors.values()]
                with open_joined(
                    door, {name: name for name in actors}, notices=self.notices, launcher=launcher
                ) as opened:
                    yield opened
                ray.wait(serving, num_returns=len(serving), timeout=ROOM_S)
        finally:
            ray.shutdown()  # ends the actors

    def _check_reachable(self) -> None:
        """Raise UsageError where nobody listens: Ray itself would try for minutes, and then end this process."""
        address = os.environ.get("RAY_ADDRESS", "") if self._address == "auto" else self._address
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            return
        try:
            socket.create_connection((host, int(port)), timeout=REACH_S).close()
        except OSError as error:
            facts = f"--on {self.name}: no Ray cluster answers at {host}:{port}: {error.strerror or error}"
            raise UsageError("E297", facts, fix="ray start --head, or --on ray:ADDRESS:PORT") from error

    def _start_actors(self, ray: Any, places: Sequence[Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return an actor for each node, and their public keys, by the names of the hosts."""
        options = [{"num_cpus": 1, "scheduling_strategy": place} for place in places]
        remote = ray.remote(AgentActor)
        actors = {f"node{number}": remote.options(**option).remote() for number, option in enumerate(options)}
        keys = {name: actor.public_key.remote() for name, actor in actors.items()}
        try:
            return actors, dict(zip(keys, ray.get(list(keys.values()), timeout=ROOM_S), strict=True))
        except ray.exceptions.GetTimeoutError as error:
            facts = f"--on {self.name}: the cluster has no room for an actor on each of {len(places)} nodes"
            raise UsageError("E297", facts, fix="see `ray status`; each needs 1 CPU") from error
        except ray.exceptions.RayError as error:
            facts = f"--on {self.name}: an actor could not start: {str(error).strip()[-400:]}"
            raise UsageError("E297", facts, fix="install cutset in the environment of every node") from error

    def __repr__(self) -> str:
        return f"RayEngine({self.name})"
