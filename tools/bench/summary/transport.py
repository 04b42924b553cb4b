"""Channels, parameter servers and optimizers beside raw sockets, gloo, ps-lite and memcpy."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...units import format_bytes
from ..peer_comparison import RATE, SECONDS, Limit, PeerComparison
from ..transport import channel, optimizers, parameter_server
from ..transport.channel import ChannelRates
from ..transport.optimizers import OptimizerRates
from ..transport.parameter_server import BOTH_WAYS, CASES, ONE_WAY, PULL, PUSH_PULL, WAYS, ServerRate
from ..transport.parameter_server_goals import GOALS, MIN_ADAGRAD, MIN_ENCRYPTED, PSLITE_GOALS
from ..transport.pslite import PSLITE, measure_beside
from ..transport.transports import CURVE, GLOO, MEMCPY, PLAIN, RAW, TRANSPORTS
from .benchmark import BenchmarkOptions, Tell

SHORT_SIZES = (64 << 10, 1 << 20, 16 << 20)


def measure_channel(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time all transports between two processes."""
    transports = [name for name in TRANSPORTS if name != MEMCPY or not options.short]
    sizes = SHORT_SIZES if options.short else channel.SIZES
    rounds = options.choose_rounds(channel.ROUNDS)
    return tuple(compare_channels(channel.measure(transports=transports, sizes=sizes, rounds=rounds)))


def compare_channels(rows: Sequence[ChannelRates]) -> Iterator[PeerComparison]:
    """Compare our transports one way with a raw socket, and there and back with gloo."""
    by_key = {(row.transport, row.size): row for row in rows}
    for row in rows:
        if row.transport not in WAYS:
            continue
        raw, gloo, size = by_key[RAW, row.size], by_key[GLOO, row.size], format_bytes(row.size)
        yield PeerComparison(f"{row.transport}, {size}, one way", RATE, row.rates, RAW, raw.rates)
        yield PeerComparison(f"{row.transport}, {size}, there and back", SECONDS, row.returns, GLOO, gloo.returns)


def measure_optimizers(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time all optimizers."""
    rounds = options.choose_rounds(optimizers.ROUNDS)
    return tuple(compare_optimizers(optimizers.measure(rounds=rounds)))


def compare_optimizers(rows: Sequence[OptimizerRates]) -> Iterator[PeerComparison]:
    """Compare optimizers, alone and as a shard applies a push, with memcpy."""
    for row in rows:
        yield PeerComparison(row.optimizer, RATE, row.alone, MEMCPY, row.memcpy)
        yield PeerComparison(f"{row.optimizer}, a push", RATE, row.pushed, MEMCPY, row.memcpy)


def measure_servers(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time parameter servers, and ps-lite in turn if there is a program of it."""
    program = Path(options.pslite) if options.pslite and not options.short else None
    cases = [case for case in CASES if case.shards == 1 or not options.short]
    rows = measure_beside(program, rounds=options.choose_rounds(parameter_server.ROUNDS), cases=cases)
    return tuple(compare_servers(rows))


def compare_servers(rows: Sequence[ServerRate]) -> Iterator[PeerComparison]:
    """Compare each rate with that of a raw socket used in the same directions, and as the goals of servers say."""
    by_key = {(row.way, row.what, row.shards, row.optimizer): row for row in rows}
    goals = {(way, what): Limit(least=least) for way, what, least in GOALS}
    ours = [row for row in rows if row.way in WAYS]
    for row in ours:
        direction = BOTH_WAYS if row.what == PUSH_PULL else ONE_WAY
        raw, limit = by_key[RAW, direction, 0, ""], goals.get((row.way, row.what))
        yield PeerComparison(_name_rate(row), RATE, row.rates, f"{RAW} {direction}", raw.rates, limit)
    for way, what, least in PSLITE_GOALS:
        theirs, row = by_key.get((PSLITE, what, 1, "sgd")), by_key[way, what, 1, "sgd"]
        if theirs is not None:
            yield PeerComparison(_name_rate(row), RATE, row.rates, PSLITE, theirs.rates, Limit(least=least))
    for row in ours:
        plain, sgd = by_key[PLAIN, row.what, row.shards, row.optimizer], by_key[row.way, row.what, row.shards, "sgd"]
        if row.way == CURVE:
            yield PeerComparison(_name_rate(row), RATE, row.rates, PLAIN, plain.rates, Limit(least=MIN_ENCRYPTED))
        if row.optimizer == "adagrad" and row.what != PULL:
            yield PeerComparison(_name_rate(row), RATE, row.rates, "sgd", sgd.rates, Limit(least=MIN_ADAGRAD))


def _name_rate(row: ServerRate) -> str:
    return f"{row.what}, {row.optimizer}, {row.way}, {row.shards} {'shard' if row.shards == 1 else 'shards'}"
