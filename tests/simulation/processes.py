"""The processes, channels and disks of the simulation, in the place of the real ones of the launcher and the shards."""

import errno
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import IO, Any, ClassVar

import msgspec
import torch
from greenlet import GreenletExit
from torch import Tensor
from world import VirtualTask, present

from cutset.ps.checkpoint import snapshot, streamed_safetensors
from cutset.ps.checkpoint import write_checkpoint as writing
from cutset.runtime.channel.channel import CONNECTION_LOST, DIRECTORY, KEYS_KNOWN, silence_error
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.runtime.channel.zmq_channel import HEARTBEAT
from cutset.runtime.hosts import child
from cutset.runtime.hosts.assignment import Assignment
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.runtime.hosts.host import Role
from cutset.runtime.hosts.process_activity import ProcessActivity
from cutset.runtime.launcher import launcher

SIGKILL, SIGTERM = 9, 15
BREAK_S = 4.0  # until the ends of a connection notice that nothing passes


class SimChannel:
    """One role's end of the simulated network."""

    def __init__(self, name: str, job: str = "", keys: object = None, *, host: str = "") -> None:
        self.name, self.endpoint = name, f"sim://{name}"
        self._inbox = deque[Message]()
        self._world = present()
        self._world.inboxes[name] = self._take

    def send(self, peer: str, message: Message) -> Message:
        tensors = tuple(t.clone() for t in message.tensors) if message.borrowed else message.tensors
        kept = msgspec.structs.replace(message, tensors=tensors, borrowed=False)
        body = msgspec.msgpack.decode(msgspec.msgpack.encode(message.body))
        arriving = tuple(t.clone() for t in tensors)
        self._world.post(self.name, peer, msgspec.structs.replace(kept, body=body, tensors=arriving, sender=self.name))
        return kept

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype)

    def receive(self, timeout_s: float) -> Message:
        end = self._world.now + timeout_s
        while (message := self.poll()) is None:
            if self._world.now >= end:
                raise silence_error(self.name, timeout_s)
            self._block(end - self._world.now)
        return message

    def poll(self) -> Message | None:
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        if not self._inbox:
            self._block(timeout_s)

    def requeue(self, messages: Iterable[Message]) -> None:
        self._inbox.extendleft(reversed(list(messages)))

    def introduce(self, directory: Mapping[str, str], *, key_owners: object = None) -> None:
        pass

    def forget(self, peer: str) -> None:
        pass

    def statistics(self) -> dict[str, dict[str, int]]:
        return {}

    def close(self) -> None:
        self._world.inboxes.pop(self.name, None)

    def _take(self, message: Message) -> None:
        if message.kind != DIRECTORY:
            self._inbox.append(message)
            self._owner.wake()
        elif message.body["keys"]:
            self.send(LAUNCHER, Message(KEYS_KNOWN, body={"owners": list(message.body["keys"])}))

    def _block(self, timeout_s: float) -> None:
        self._owner.block(timeout_s)

    @cached_property
    def _owner(self) -> VirtualTask:
        return next(task for task in self._world.tasks.values() if task.name == self.name and not task.dead)


class SimProcess:
    """A process of the launcher that is a task of the world."""

    numbers = iter(range(1, 1 << 60))
    all: ClassVar[list["SimProcess"]] = []

    def __init__(self, name: str) -> None:
        self.name, self.pid, self.end_file, self.stdin = name, next(self.numbers), None, self
        self.host_lost = ""
        self.ends: SimEnds | None = None  # who waits for its end
        self._code: int | None = None
        self._world = present()
        self._task: VirtualTask | None = None
        self.all.append(self)

    def begin(self, assignment: Assignment) -> None:
        """Run the role."""
        self._task = VirtualTask(self._world, self.name, lambda: self._run(assignment))
        self._task.begin(self._world.chance.uniform(0.3, 2.0))

    def returncode(self) -> int | None:
        return self._code

    def last_lines(self) -> str:
        return ""

    def hang_up(self) -> None:
        self._end(1)

    def signal(self, number: int) -> None:
        self._end(-number)

    def kill(self) -> None:
        self._end(-SIGKILL)

    def stop(self) -> None:
        """As SIGSTOP does."""
        if self._task is not None:
            self._task.stopped = True

    def proceed(self) -> None:
        """As SIGCONT does."""
        if self._task is not None:
            self._task.proceed()

    @property
    def local_pid(self) -> int:
        return self.pid

    @property
    def works(self) -> bool:
        """Whether it has begun and has not ended."""
        return self._code is None and self._task is not None and self.name in self._world.inboxes

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
            if self.ends is not None:
                self.ends.ended.append(self)
            self._world.inboxes.pop(self.name, None)
            if self._task is not None:
                self._task.dead = True

    def _run(self, assignment: Assignment) -> None:
        channel = SimChannel(self.name)
        try:
            code = self._call(assignment, channel)
        except GreenletExit:  # what was killed is thrown away
            return
        self._world.sleep(self._world.chance.uniform(0.0, 0.3))
        self._end(code)

    def _call(self, assignment: Assignment, channel: Any) -> int:
        """As `child` does it."""
        progress = RoleProgress()
        try:
            channel.send(LAUNCHER, Message("hello", body={"endpoint": channel.endpoint}))
            child._await_start(channel, assignment.start_timeout_s)
            self._beat(progress, channel, assignment.heartbeat_interval_s)
            value = child._load(assignment.entry)(channel, assignment.setup, progress)
            channel.send(LAUNCHER, Message("finished", body={"value": value}))
        except GreenletExit:
            raise
        except BaseException as error:
            report, code = child._failure_message(error, self.name)
            channel.send(LAUNCHER, report)
            return code
        return 0

    def _beat(self, progress: RoleProgress, channel: SimChannel, interval_s: float) -> None:
        task = self._task
        if task is None or task.dead or self._code is not None:
            return
        if not task.stopped:
            message = Message(
                "heartbeat", body={"progress": progress.value, "status": progress.status}, sender=self.name + HEARTBEAT
            )
            self._world.post(self.name, LAUNCHER, message)
        self._world.at(interval_s, lambda: self._beat(progress, channel, interval_s))


def break_connection(a: str, b: str) -> None:
    """Let nothing pass between two roles any more; some seconds later both tell the launcher, if they still work."""
    world = present()
    world.broken.add(frozenset((a, b)))

    def notice() -> None:
        for name, peer in ((a, b), (b, a)):
            if name in world.inboxes and peer in world.inboxes:
                facts = f"the connection from {name} to {peer} broke"
                body = {"peer": peer, "code": "E514", "facts": facts, "fix": ""}
                world.post(name, LAUNCHER, Message(CONNECTION_LOST, body=body, sender=name))

    world.at(BREAK_S + world.chance.random(), notice)


class SimThread:
    """The thread of a snapshot: it has written its file some time after the last slice was copied for it."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self._run, self._done = lambda: target(*args), False
        self._copies: Any = None
        self._snapshot = getattr(target, "__self__", None)
        self._due = 0.0

    def start(self) -> None:
        self._due = present().now + present().chance.uniform(0.0, 0.2)

    def is_alive(self) -> bool:
        if not self._done and present().now >= self._due and None in self._snapshot._copies.queue:  # type: ignore[union-attr]
            self.join()
        return not self._done

    def join(self) -> None:
        if not self._done:
            self._done = True
            self._run()


class Threads:
    """In the place of the module `threading`."""

    Thread = SimThread


class SimEnds:
    """Which processes have ended."""

    def __init__(self) -> None:
        self.ended: list[SimProcess] = []

    def fileno(self) -> int:
        return -1

    def add(self, process: SimProcess) -> None:
        process.ends = self

    def discard(self, process: SimProcess) -> None:
        process.ends = None

    def take_ended(self) -> list[SimProcess]:
        ended, self.ended = self.ended, []
        return [process for process in ended if process.ends is self]

    def close(self) -> None:
        pass


class NoProbes:
    """The system does not tell what processes do."""

    def sample(self, pids: Mapping[str, int], now: float) -> dict[str, ProcessActivity]:
        return {}


class SimHost:
    """What starts the processes."""

    address, cores, memory_bytes = "127.0.0.1", 1, 1 << 40
    public_key = folder = ports = lost = ""

    def __init__(self, name: str = "local", **ignored: str) -> None:
        self.name = name
        self._processes: list[SimProcess] = []

    def start(self, role: Role, log: IO[bytes]) -> SimProcess:
        self._processes.append(SimProcess(role.name))
        return self._processes[-1]

    def lose(self) -> None:
        """Be lost, with all that runs on it."""
        self.lost = f"{self.name} does not answer"
        for process in self._processes:
            process.host_lost = self.lost
            process.kill()

    def prepare(self, threads: int, entry: str) -> None:
        pass

    def assign(self, process: SimProcess, assignment: Assignment, **ignored: object) -> None:
        process.begin(assignment)

    def close(self) -> None:
        pass


def _check_disk(*ignored: object) -> None:
    if present().now < present().disk_full_until:
        raise OSError(errno.ENOSPC, "No space left on device")


def install_processes() -> None:
    """Have the launcher and the shards use what is simulated."""
    launcher.ZmqChannel = SimChannel  # type: ignore[assignment,misc]
    launcher.LocalHost = SimHost  # type: ignore[assignment,misc]
    launcher.ProcessEnds = SimEnds  # type: ignore[assignment,misc]
    launcher.ActivityProbes = NoProbes  # type: ignore[assignment,misc]
    launcher.make_keys = lambda names, others: dict.fromkeys(names, b"")  # type: ignore[assignment]
    launcher.Assignment = _plain_assignment  # type: ignore[assignment,misc]
    launcher.await_ends = lambda processes, timeout_s: None
    launcher.end_all = _end_all
    snapshot.threading = Threads  # type: ignore[assignment]
    writing._sync = _check_disk
    begin = streamed_safetensors.TensorWriter.__init__

    def begin_if_possible(self: Any, *args: Any, **options: Any) -> None:
        _check_disk()
        begin(self, *args, **options)

    streamed_safetensors.TensorWriter.__init__ = begin_if_possible  # type: ignore[method-assign]
    torch.set_num_threads(1)


def _end_all(processes: list[SimProcess]) -> None:
    while processes:
        processes.pop().kill()


def _plain_assignment(**fields: Any) -> Assignment:
    """The setup as it comes out of the pipe."""
    setup = msgspec.msgpack.decode(msgspec.msgpack.encode(fields["setup"]))
    return Assignment(**{**fields, "setup": setup})
