"""`ShardSupervisor`: the shards of a run, what replaces a shard that is lost, and which files cannot be written.

A lost shard is restarted under a new name and continues from its journal; the workers are told the new name and push
again what the journal lacks. Where all replicas go in lock step, all shards continue from the last recovery point
instead, whichever role was lost.
"""

from collections.abc import Iterable

import msgspec

from ...errors import ProcessLost
from ...ps.checkpoint.journal import JournalConfig, journal_path
from ...ps.slices.slicing import slices_of_shard
from ...runtime.channel.message import Message
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Launcher
from ...runtime.launcher.membership import Loss
from ..hosts.run_hosts import RunHosts
from ..job.job import Job
from ..job.process_specs import ShardSpec, shard_group, shard_name
from .recovery_points import RecoveryPoints
from .roles import SHARD
from .supervision import OnNotice, RestartLog, describe_wait_for_room


class ShardSupervisor:
    """Follows the shards of one run.

    Args:
        restarts: the limit and the record of restarts, which the shards share with the replicas.
        points: where shards of lock-step methods continue from.
        on_notice: called with a sentence for every restart and for files that cannot be written.
    """

    def __init__(
        self, job: Job, hosts: RunHosts, restarts: RestartLog, points: RecoveryPoints, *, on_notice: OnNotice
    ) -> None:
        self._job, self._hosts, self._restarts = job, hosts, restarts
        self._points, self._on_notice = points, on_notice
        self._indices = range(job.shards)
        self._workers: set[str] = set()  # connected workers, which have to know the names of the shards
        self._reported: set[tuple[str, str]] = set()  # failures to write that the user knows: whose, and why

    @property
    def names(self) -> list[str]:
        """The current names of all shards, by index."""
        return [shard_name(index, self._incarnation(index)) for index in self._indices]

    @property
    def serving(self) -> dict[int, str]:
        """The current names of the shards that are not missing, by index."""
        return {i: name for i, name in enumerate(self.names) if not self._restarts.is_missing(shard_group(i))}

    @property
    def all_serve(self) -> bool:
        """Whether no shard is missing at present."""
        return not any(self._restarts.is_missing(shard_group(index)) for index in self._indices)

    def roles(self) -> list[Role]:
        """Return the roles of all shards."""
        return [self._role(index) for index in self._indices]

    def restart(self, loss: Loss) -> list[Role] | None:
        """Return what replaces a lost shard, None if the loss is of no shard.

        Raise its error at the restart limit, and where the shard could never write the journal to continue from.
        """
        index = self.find(loss.progress)
        if index is None:
            return None
        unwritten = next((reason for name, reason in self._reported if name == shard_name(index)), "")
        if unwritten and not journal_path(self._job.out, index).exists():
            facts = f"{loss.error.facts}; it has no journal to restart from, which cannot be written: {unwritten}"
            raise ProcessLost(loss.error.code, facts, fix="make room, and go on with --resume")
        reason = self._restarts.restart(shard_group(index), loss.error)
        lacks = (
            f"; its journal could not be written ({unwritten}), so it lacks what workers no longer have of their pushes"
        )
        self._on_notice(f"shard {index} restarts: {reason}{lacks if unwritten else ''}")
        return [self._role(index)]

    def find(self, lost: Iterable[str]) -> int | None:
        """Return the index of the shard among lost roles, None if there is none."""
        names = self.names
        return next((names.index(name) for name in lost if name in names), None)

    def follow(self, lost: Iterable[str]) -> None:
        """Have all shards continue from the last recovery point, whose groups are not among the lost ones."""
        self._workers.clear()
        for group in [group for index in self._indices if (group := shard_group(index)) not in lost]:
            self._restarts.follow(group)

    def handle(self, message: Message, launcher: Launcher) -> bool:
        """Take a message into account; return whether it concerned the shards alone."""
        match message.kind:
            case "connected":
                self._workers.add(message.sender)
                for index in self._indices:
                    if self._incarnation(index) and not self._restarts.is_missing(shard_group(index)):
                        self._send_new_name(launcher, message.sender, index)
            case "serving":
                index = self.names.index(message.sender)
                self._restarts.mark_working(shard_group(index))
                for worker in sorted(self._workers):
                    self._send_new_name(launcher, worker, index)
            case "write_failed":
                self._report_write_failure(message.sender, message.body["reason"])
            case "waiting_for_room":
                self._on_notice(describe_wait_for_room(message.sender, message.body["reason"]))
            case _:
                return False
        return True

    def forget_worker(self, name: str) -> None:
        """Send nothing to a worker any more."""
        self._workers.discard(name)

    def _incarnation(self, index: int) -> int:
        return self._restarts.incarnation(shard_group(index))

    def _role(self, index: int) -> Role:
        job, host = self._job, self._hosts.shard_host(index)
        by_time = job.training.checkpoint_s > 0
        lock_step, incarnation = job.method.lock_step, self._incarnation(index)
        journal = JournalConfig(
            self._hosts.folder_on(host),
            checkpoint_every=job.checkpoint_versions,
            on_request=by_time,
            lock_step=lock_step,
            kept_elsewhere=self._hosts.may_be_lost(host),
        )
        from_journal = str(journal_path("", index)) if incarnation else ""
        setup = ShardSpec(
            index,
            slices_of_shard(job.slices, index),
            job.serving,
            journal,
            incarnation,
            restore_from=self._points.shard_file(index) if lock_step else from_journal,
            steps=self._points.step if lock_step else None,
        )
        # A shard cannot be restarted where workers update its memory directly, which is lost with it, or where the
        # replicas meet at its key-value store, whose content is lost.
        survives = not (job.method.needs_one_shard or job.method.needs_all_replicas)
        group = shard_group(index) if job.config.restarts and survives else ""
        name = shard_name(index, incarnation)
        role = Role(name, SHARD, msgspec.to_builtins(setup), group=group)
        return self._hosts.place(role, host, files=[setup.restore_from] if setup.restore_from else [])

    def _send_new_name(self, launcher: Launcher, worker: str, index: int) -> None:
        launcher.send(worker, Message("shard_replaced", body={"shard": index, "name": self.names[index]}))

    def _report_write_failure(self, name: str, reason: str) -> None:
        """Report a failure once, not every few seconds for each file."""
        failure = name.partition("+")[0], reason.partition(":")[0]
        if failure not in self._reported:
            self._reported.add(failure)
            self._on_notice(
                f"files of {name} cannot be written: {reason}; training continues, and the last complete files stay"
            )
