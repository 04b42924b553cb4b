"""The command `cutset host`: this machine joins a run that is launched on another one."""

from pathlib import Path

import click

from ...errors import UsageError
from ..path_option import PathOption


@click.command("host")
@click.option("--join", "address", metavar="ADDRESS[:PORT]", help="Join the launcher that waits at this address.")
@click.option("--key", type=PathOption(), metavar="FILE", help="The key of the run, a file that only you may read.")
@click.option("--number", type=click.IntRange(0), default=0, help="Which of the machines this is, from 0.")
@click.option("--new-key", type=PathOption(), metavar="FILE", help="Make a key for a run, and end.")
@click.option("--listen", metavar="ADDRESS[:PORT]", help="With --new-key: where the launcher will wait.")
def host(address: str | None, key: Path | None, number: int, new_key: Path | None, listen: str | None) -> None:
    """Join a run that is launched on another machine.

    Where nothing starts agents, they come by themselves. `cutset host --new-key run.key --listen 192.168.1.10` makes a
    key; copy it to every machine by a safe way, such as scp. `cutset train TASK --on join:run.key` waits on the first
    machine; `cutset host --join 192.168.1.10 --key run.key --number 0` joins, with another number on each. A key serves
    for ten minutes and each number once. It ends with the run, and leaves nothing.
    """
    from ...runtime.joining.join import join
    from ...runtime.joining.join_key import VALID_S, make_join_key, read_join_key, write_join_key

    if new_key is not None:
        where, port = _split(listen or "127.0.0.1")
        write_join_key(make_join_key(where, port), new_key)
        click.echo(f"{new_key}: for 10 minutes, at {where}:{port}")
        return
    if address is None or key is None:
        raise UsageError("E297", "cutset host needs --join and --key, or --new-key", fix="see cutset host --help")
    where, port = _split(address)
    join(f"tcp://{where}:{port}", read_join_key(key).make_pass(number), wait_s=VALID_S)


def _split(address: str) -> tuple[str, int]:
    """Return address and port. Raise UsageError where it is none."""
    from ...runtime.joining.join_key import DEFAULT_PORT

    where, _, port = address.partition(":")
    if not where or (port and not (port.isdecimal() and 0 < int(port) < 1 << 16)):
        raise UsageError("E297", f"{address!r} is no address", fix="192.168.1.10, or 192.168.1.10:47017")
    return where, int(port) if port else DEFAULT_PORT
