"""The resharding cost: seconds on the network between the layouts of two operators, for all pairs at once.

Indices: p layouts of the operator that makes a tensor, q of the one that reads it, m machines. What the busiest machine
receives, or the senders send on average, is what `lower_cut` would make of it.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cluster.machines import Cluster
from ..dataflow.reduction_split import summary_bytes
from ..ir.graph import Operand, TensorInfo
from .device_mesh import Ints
from .layout_space import Bools, LayoutSpace, Regions, input_regions, output_regions

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrafficWeights:
    """How a second on the network counts against one of compute. network: of sending bytes. latency: of a message."""

    network: float = 1.0
    latency: float = 1.0


EQUAL_WEIGHTS = TrafficWeights()


class LayoutTraffic:
    """The network costs of layouts on one cluster. Links of single pairs are left to the simulator."""

    def __init__(self, cluster: Cluster, weights: TrafficWeights) -> None:
        self.weights = weights
        self.latency_s = max(cluster.latency_s if m.latency_s is None else m.latency_s for m in cluster.machines)
        self.bandwidth = np.array([min(cluster.bandwidth_in(m), cluster.bandwidth_out(m)) for m in range(len(cluster))])

    def send_state(self, of: LayoutSpace, operand: Operand, info: TensorInfo) -> Floats:
        """A region of state that several machines read goes from its owner to the others, and its gradient returns.

        Owners of the model's parameters are many, so all readers' cards are taken to send alike: [p].
        """
        need = input_regions(of, operand, info)
        there = need.there[..., None]
        low = np.where(there, need.boxes[..., 0], np.iinfo(np.int64).max).min(axis=1)
        high = np.where(there, need.boxes[..., 1], 0).max(axis=1)
        extra = np.maximum(0, need.points.sum(axis=1) - np.prod(np.maximum(0, high - low), axis=-1))
        busy = np.maximum(1, need.there.sum(axis=1))
        return self._weigh(extra * info.element_bytes / busy / self.bandwidth.min(), extra > 0, info)

    def exchange_summaries(self, of: LayoutSpace, output: TensorInfo) -> Floats:
        """The summary of each part of non-additive loops goes to all others, and its gradient returns: [p]."""
        nest = of.op.nest
        parts = np.array(
            [math.prod(of.mesh.shape[d] for d, i in layout if i in nest.non_additive) for layout in of.layouts]
        )
        if parts.max() == 1:
            return np.zeros(len(parts))
        others = [i for i in range(len(nest.loops)) if i not in nest.non_additive]
        size = (of.boxes[:, :, others, 1] - of.boxes[:, :, others, 0]).prod(axis=2).max(axis=1) * summary_bytes(of.op)
        return self._weigh((parts - 1) * size / self.bandwidth.min(), parts > 1, output)

    def between(self, maker: LayoutSpace, reader: LayoutSpace, operand: Operand, info: TensorInfo) -> Floats:
        """Seconds on the network between two operators, forward and back: [p, q]."""
        need = input_regions(reader, operand, info)
        expand = self.expand(output_regions(maker, info), need, info)
        summed = maker.parts > 1
        if not summed.any():
            return expand
        folded = np.minimum(self.direct(maker, need, info), expand + self.fold(maker, info)[:, None])
        return np.where(summed[:, None], folded, expand)

    def expand(self, have: Regions, need: Regions, info: TensorInfo) -> Floats:
        """From the machines that have a tensor to those that need it: [p, q]."""
        missing = need.points[None] - have.common(need)
        return self._transfer_seconds(missing, have.there, info)

    def fold(self, maker: LayoutSpace, info: TensorInfo) -> Floats:
        """From the parts of a sum to the machines that own a share each: [p]."""
        missing = maker.parts[:, None] * maker.complete.points - maker.partial.beside(maker.complete)
        received = (missing * info.element_bytes / self.bandwidth).max(axis=1)
        return self._weigh(received, maker.parts > 1, info)

    def direct(self, maker: LayoutSpace, need: Regions, info: TensorInfo) -> Floats:
        """From the parts of a sum straight to its readers; infinite where some point has none, or several: [p, q]."""
        missing = maker.parts[:, None, None] * need.points[None] - maker.partial.common(need)
        return np.where(need.once(info)[None], self._transfer_seconds(missing, maker.partial.there, info), np.inf)

    def _transfer_seconds(self, missing: Ints, senders: Bools, info: TensorInfo) -> Floats:
        """Seconds until the busiest machine has what it misses; missing: points, [p, q, m]; senders: [p, m]."""
        size = missing * info.element_bytes
        received = (size / self.bandwidth).max(axis=2)
        sent = size.sum(axis=2) / np.maximum(1, senders.sum(axis=1))[:, None] / self.bandwidth.min()
        return self._weigh(np.maximum(received, sent), np.asarray(size.any(axis=2)), info)

    def _weigh(self, seconds: Floats, crosses: Bools, info: TensorInfo) -> Floats:
        """Seconds of bytes and of a message, forward, and again backward where a gradient returns."""
        once = self.weights.network * seconds + np.where(crosses, self.weights.latency * self.latency_s, 0.0)
        return once * (2.0 if info.gradient else 1.0)
