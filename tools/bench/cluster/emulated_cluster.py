"""`EmulatedCluster`: machines that are network name spaces of this host, at one switch, each with a limited link.

Every machine is a name space with one network card; the switch is a name space of its own, with a bridge and a port for
each machine. Both ends of a cable send at the rate of the link and no faster (tc-tbf(8)), so that a machine has that
rate each way, whoever it talks to. This process is at the switch, too, without a limit: a launcher here reaches all.

A name space belongs to the process that its name tells. One that was killed leaves its name spaces behind, which the
next cluster removes.
"""

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ....errors import UsageError
from ....partition.cluster.quantities import Bandwidth
from ....runtime.hosts.host import LocalHost
from ...probe.measure_step import ProcessPlacement

MAX_MACHINES = 64  # far more than a host has cores for
SUBNETS = 512  # of 198.18.0.0/15, which is set aside for measuring networks (RFC 2544)
NAMESPACES, INTERFACES = Path("/run/netns"), Path("/sys/class/net")
PAYLOAD = (1500 - 52) / 1514  # of a full Ethernet frame what is not IP, TCP with time stamps, or Ethernet
# What a link has not sent for so long it may catch up with, for it misses its turn where no core is free; but no faster
# than so many times its rate, and hardly more at once than a packet, so that short messages take their time, too.
SAVED_S, PEAK = 2e-3, 1.25
# A packet is what TCP hands over at once, to be cut up by the card: each takes cores the same time, however large, and
# those are the emulated machines'. A message may arrive too early by as much as a packet takes on the wire.
FRAME_BYTES, MAX_PACKET_BYTES, PACKET_S = 1514, 61_440, 1e-3
AT_ONCE_S = 2e-4
QUEUE_BYTES = 64 << 20  # nothing is ever dropped: a full link delays
COMMAND_S, UP_S = 20.0, 2.0
_NAME = re.compile(r"cutset-(\d+)-(\d+)-\d+-(?:switch|\d+)")


def parse_rate(text: str) -> float:
    """Parse a rate as tc or a cluster file writes it, "1gbit" or "100 Mbit/s", to bytes/s. Raises ValueError."""
    plain = text.strip()
    return Bandwidth.parse(f"{plain}/s" if plain.lower().endswith(("bit", "b")) else plain)


class EmulatedCluster:
    """A cluster of emulated machines, while entered. rate: bytes/s on the wire, each way.

    Entering raises UsageError if this process may not make name spaces, or the tools are missing.
    """

    def __init__(self, machines: int, *, rate: float) -> None:
        if not 1 <= machines <= MAX_MACHINES:
            raise UsageError(
                "E242", f"{machines} emulated machines; there can be 1 to {MAX_MACHINES}", fix="--machines 4"
            )
        self.rate = rate
        self._machines = machines
        self._stack = ExitStack()
        self._stem, self._subnet = "", ""
        self._hosts: tuple[LocalHost, ...] = ()

    @property
    def payload_rate(self) -> float:
        """The bytes/s of a link that a TCP connection can carry."""
        return self.rate * PAYLOAD

    @property
    def process_placement(self) -> ProcessPlacement:
        """Where processes run: on the machines, and this process at the switch."""
        return ProcessPlacement(self._address(self._machines), self._hosts)

    def pull_cable(self, machine: int) -> None:
        """Pull a machine's cable: its card and the switch see at once that nothing is at the other end."""
        _run_command("ip", "-n", self._switch, "link", "set", f"port{machine}", "down")

    def drop_packets(self, machine: int) -> None:
        """Drop all packets to and from a machine; cards and switch do not notice."""
        _run_command("bridge", "-n", self._switch, "link", "set", "dev", f"port{machine}", "state", "0")

    def restore(self, machine: int) -> None:
        """Undo `pull_cable` and `drop_packets`."""
        _run_command("ip", "-n", self._switch, "link", "set", f"port{machine}", "up")
        forward = ("bridge", "-n", self._switch, "link", "set", "dev", f"port{machine}", "state", "3")
        deadline = time.monotonic() + UP_S
        while True:
            try:
                _run_command(*forward)
                return
            except UsageError:  # the kernel notices a cable some time after the card is up
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def __enter__(self) -> Self:
        require_support()
        remove_leftovers()
        with ExitStack() as building:
            self._build_switch(building)
            for machine in range(self._machines):
                self._build_machine(machine, building)
            self._hosts = tuple(self._make_host(machine, building) for machine in range(self._machines))
            self._stack = building.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return f"EmulatedCluster({self._machines} machines at {self.rate:g} B/s, {self._stem or 'not entered'})"

    @property
    def _switch(self) -> str:
        return f"{self._stem}-switch"

    def _name(self, machine: int) -> str:
        return f"{self._stem}-{machine}"

    def _address(self, machine: int) -> str:
        return f"{self._subnet}.{machine + 1}"

    def _make_host(self, machine: int, building: ExitStack) -> LocalHost:
        prefix = ("ip", "netns", "exec", self._name(machine))
        return building.enter_context(LocalHost(self._name(machine), self._address(machine), prefix=prefix))

    def _build_switch(self, building: ExitStack) -> None:
        """Build the switch and this process's cable to it, whose name on this host says that the subnet is taken."""
        addresses = _list_addresses()
        for offset in range(SUBNETS):
            number = (os.getpid() + offset) % SUBNETS
            cable, self._subnet = f"cutset{number}", f"198.{18 + number // 256}.{number % 256}"
            if (INTERFACES / cable).exists() or any(a.startswith(f"{self._subnet}.") for a in addresses):
                continue
            self._stem = f"cutset-{os.getpid()}-{_read_start(os.getpid())}-{number}"
            self._add_namespace(self._switch, building)
            building.callback(_remove_link, cable)
            _run_command("ip", "link", "add", cable, "type", "veth", "peer", "name", "uplink", "netns", self._switch)
            _run_command("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _run_command("ip", "-n", self._switch, "link", "set", "dev", "bridge", "up")
            _run_command("ip", "-n", self._switch, "link", "set", "dev", "uplink", "master", "bridge", "up")
            _run_command("ip", "address", "add", f"{self._address(self._machines)}/24", "dev", cable)
            _run_command("ip", "link", "set", "dev", cable, "up")
            return
        raise UsageError("E243", f"all {SUBNETS} subnets for emulated clusters are in use here", fix="end the others")

    def _build_machine(self, machine: int, building: ExitStack) -> None:
        name, port = self._name(machine), f"port{machine}"
        self._add_namespace(name, building)
        _run_command(
            "ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "card", "netns", name
        )
        _run_command("ip", "-n", name, "address", "add", f"{self._address(machine)}/24", "dev", "card")
        _run_command("ip", "-n", self._switch, "link", "set", "dev", port, "master", "bridge", "up")
        for device in ("lo", "card"):
            _run_command("ip", "-n", name, "link", "set", "dev", device, "up")
        _limit_rate(self._switch, port, self.rate)
        _limit_rate(name, "card", self.rate)

    def _add_namespace(self, name: str, building: ExitStack) -> None:
        building.callback(_remove_namespace, name)  # first, in case that adding it is interrupted
        _run_command("ip", "netns", "add", name)


def _limit_rate(namespace: str, device: str, rate: float) -> None:
    """Limit a device to send so many bytes/s."""
    frames = max(2, math.floor(min(MAX_PACKET_BYTES, rate * PACKET_S) / FRAME_BYTES))
    at_once = max(frames * FRAME_BYTES, math.ceil(rate * AT_ONCE_S))
    burst = max(at_once, math.ceil(rate * SAVED_S))
    how = ("rate", f"{math.ceil(rate * 8)}bit", "burst", str(burst), "limit", str(QUEUE_BYTES))
    peak = ("peakrate", f"{math.ceil(rate * 8 * PEAK)}bit", "mtu", str(at_once))
    _run_command("ip", "-n", namespace, "link", "set", "dev", device, "gso_max_segs", str(frames))
    _run_command("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *how, *peak)


def require_support() -> None:
    """Raise UsageError (E244, E245) if this process may not make name spaces, or the tools are missing."""
    missing = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing:
        raise UsageError(
            "E244",
            f"an emulated cluster is made with Linux's ip, tc and bridge; not on the PATH: {', '.join(missing)}",
            fix="apt install iproute2",
        )
    if os.geteuid() != 0:
        raise UsageError(
            "E245",
            f"an emulated cluster is made of network name spaces, which only root can add; this is user {os.geteuid()}",
            fix="sudo -E env PATH=$PATH cutset bench cluster --machines 4 --rate 1gbit",
        )


# What other processes have left ------------------------------------------------------------------------------------


def remove_leftovers() -> list[str]:
    """Remove the name spaces of processes that are gone, and return their names."""
    names = sorted(os.listdir(NAMESPACES)) if NAMESPACES.is_dir() else []
    leftovers = find_leftovers(names, _read_start)
    for name in leftovers:
        _remove_namespace(name)
    return leftovers


def find_leftovers(names: Sequence[str], started: Callable[[int], int | None]) -> list[str]:
    """Return the name spaces whose owner is gone. started: returns when a process began, None if it is gone."""
    owned = [(name, match) for name in names if (match := _NAME.fullmatch(name))]
    return [name for name, match in owned if started(int(match[1])) != int(match[2])]


def _read_start(pid: int) -> int | None:
    """Return when a process began, in clock ticks after boot: with its number, that identifies a process for good."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(status.rpartition(")")[2].split()[19])  # field 22 of proc(5); the second one may hold anything


def _remove_namespace(name: str) -> None:
    if (NAMESPACES / name).exists():
        _run_command("ip", "netns", "delete", name)


def _remove_link(name: str) -> None:
    if (INTERFACES / name).exists():
        _run_command("ip", "link", "delete", "dev", name)


def _list_addresses() -> list[str]:
    """Return all IPv4 addresses of this host."""
    return re.findall(r"inet (\S+)/\d+", _run_command("ip", "-4", "-oneline", "address"))


def _run_command(*command: str) -> str:
    """Run a command and return what it prints. Raises UsageError (E246) if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise UsageError(
            "E246",
            f"this system does not let a cluster be emulated: `{' '.join(command)}` said: {done.stderr.strip()}",
            fix="use a Linux host with network name spaces, veth, bridge and sch_tbf, as root",
        )
    return done.stdout
