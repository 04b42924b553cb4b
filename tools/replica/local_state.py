"""`LocalState`: what one worker of a lock-step method holds alone, saved with each recovery point of the run.

Of a cut model's parameters the shards have everything. A worker alone has the buffers (running statistics), what its
method keeps (the state of an inner optimizer) and what compression has withheld. With all that, a run that went back to
a recovery point computes the same bits again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ...errors import UsageError
from ...ps.checkpoint.journal import RECOVERY_POINT, recovery_path
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.client.client import Client
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ..job.process_specs import WorkerSpec
from ..run_folder import SAVED_BUFFER, local_state_name
from ..tensor_files import save_state
from .replica_state import report_write_failure

_METHOD, _RESIDUAL = "method/", "residual/"


class LocalState:
    """The local state of the worker that `spec` describes; it continues with that in `spec.local_state`, if any.

    buffers: changed in place. client: whose residuals are part of it.
    """

    def __init__(self, spec: WorkerSpec, mailbox: Mailbox, buffers: Sequence[Tensor], client: Client) -> None:
        self._spec, self._mailbox, self._client = spec, mailbox, client
        self._tensors = {f"{SAVED_BUFFER}{number}": buffer for number, buffer in enumerate(buffers)}
        self._requested = 0  # the number of the recovery point that was requested, until it is due
        self._saved: dict[str, Tensor] = {}
        path = Path(spec.training.folder, spec.local_state)
        if spec.local_state and path.exists():
            with TensorReader(path) as reader:
                self._saved = {name: reader.tensor(name) for name in reader.layouts}
        self._restore(self._tensors)
        client.restore_residuals(
            {name.removeprefix(_RESIDUAL): tensor for name, tensor in self._saved.items() if name.startswith(_RESIDUAL)}
        )

    def keep(self, tensors: Mapping[str, Tensor]) -> None:
        """Save these tensors of the method, too; fill them first, if they were saved before."""
        kept = {f"{_METHOD}{name}": tensor for name, tensor in tensors.items()}
        self._restore(kept)
        self._tensors |= kept

    def save_due(self, step: int) -> None:
        """Write the state if a recovery point is due that was requested; `step` is over."""
        while (request := self._mailbox.take((LAUNCHER, RECOVERY_POINT, 0, 0, 0))) is not None:
            self._requested = int(request.body["number"])
        number, done, period = self._requested, step + 1, self._spec.method.push_period
        if not number or done < number * period:
            return
        self._requested = 0
        # Replicas that backups may stand in for skip steps: then no recovery point is exact.
        if done == number * period or self._spec.method.backup_replicas:
            self._save(number)
        else:
            self._mailbox.send(LAUNCHER, Message(f"{RECOVERY_POINT}_missed", body={"number": number}))

    def _save(self, number: int) -> None:
        relative = recovery_path("", number) / local_state_name(self._spec.replica, self._spec.machine)
        path = self._spec.training.folder / relative
        residuals = {f"{_RESIDUAL}{piece}": tensor for piece, tensor in self._client.residuals().items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_state(path, self._tensors | residuals)
        except (OSError, UsageError) as error:
            report_write_failure(self._mailbox.channel, str(error.__cause__ or error))
            return
        self._mailbox.send(
            LAUNCHER, Message(f"{RECOVERY_POINT}_saved", body={"number": number, "written": [str(relative)]})
        )

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name in self._saved:
                tensor.copy_(self._saved[name].view(tensor.shape))

    def __repr__(self) -> str:
        return f"LocalState({sorted(self._tensors)}, restored={bool(self._saved)})"
