"""`ProcessEnds`: which of many processes have ended, without a look at each of them."""

import selectors

from ..hosts.role_process import HostedProcess


class ProcessEnds:
    """Watches processes until they have ended; what it costs to ask goes by those of which there is news."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._files: dict[str, int] = {}  # by name of the process

    def fileno(self) -> int:
        """Return a descriptor that is readable where a process may have ended."""
        return self._selector.fileno()

    def add(self, process: HostedProcess) -> None:
        """Watch a process from now on."""
        self._files[process.name] = process.end_file
        self._selector.register(process.end_file, selectors.EVENT_READ, process)

    def discard(self, process: HostedProcess) -> None:
        """Watch a process no longer, if it is watched; before its descriptors are closed."""
        file = self._files.pop(process.name, None)
        if file is not None:
            self._selector.unregister(file)

    def take_ended(self) -> list[HostedProcess]:
        """Return the processes that have ended, and watch them no longer."""
        ended = [key.data for key, _ in self._selector.select(0) if key.data.returncode() is not None]
        for process in ended:
            self.discard(process)
        return ended

    def close(self) -> None:
        """Release the descriptor."""
        self._selector.close()

    def __repr__(self) -> str:
        return f"ProcessEnds({list(self._files)})"
