"""What a method exchanges with shards, as far as the plan of a run goes."""

from ...partition.whole_run.exchange import Exchange
from ...ps.methods.all_reduce import AllReduce
from ...ps.methods.downpour import Downpour
from ...ps.methods.easgd import EASGD
from ...ps.methods.hogwild import Hogwild
from ...ps.methods.local_sgd import LocalSGD
from ...ps.methods.registry import AnyMethod
from ...ps.methods.sandblaster import Sandblaster
from ...ps.methods.ssp import SSP
from ...ps.methods.sync import Sync


def find_exchange(method: AnyMethod) -> Exchange:
    """Return how often a replica exchanges its parameters.

    A ring all-reduce sends what a push and a fetch in lock step do, with a shard on every machine. Hogwild's replicas
    share memory, and Sandblaster's fetch parameters once for all samples, which counts for nothing here. However far
    SSP's may be apart, in the long run all take as many steps as the slowest.
    """
    match method:
        case Downpour(fetch=fetch, push=push, overlap=overlap):
            return Exchange(1 / push, 1 / fetch, overlap)
        case LocalSGD(every=every, overlap=overlap):
            return Exchange(1 / every, 1 / every, overlap, lock_step=True)
        case EASGD(every=every):
            return Exchange(1 / every, 1 / every)
        case AllReduce():
            return Exchange(lock_step=True, ring=True)
        case SSP():
            return Exchange(bounded=True)
        case Sync(backups=backups):
            return Exchange(lock_step=True, backups=backups)
        case Hogwild() | Sandblaster():
            return Exchange(0.0, 0.0)
        case _:
            return Exchange(lock_step=method.lock_step)
