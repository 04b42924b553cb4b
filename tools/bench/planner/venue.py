"""`Venue`: where the processes of a launcher run: all on this host, or each at a place of its own."""

from dataclasses import dataclass, replace

from ....runtime.launcher.launcher import Role


@dataclass(frozen=True)
class Venue:
    """Where the processes of a launcher run. host: the launcher's address.

    places: by machine, the address that its process listens on and the command that runs it there; none: all on `host`.
    """

    host: str = "127.0.0.1"
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def role(self, role: Role, machine: int) -> Role:
        """The role at the place of a machine."""
        if not self.places:
            return role
        host, prefix = self.places[machine]
        return replace(role, host=host, prefix=prefix)
