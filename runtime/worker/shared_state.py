"""`SharedState`: parameters and buffers that several machines use; it travels before a step, its gradients after it."""

from torch import Tensor

from ...partition.ir.box import relative, slices
from .flat_parameters import FlatParameters
from .prepared_segment import cut_frames, take_frames, with_gradient
from .program import Program, TransferEdge
from .replica_peers import ReplicaPeers, Route
from .segment_runner import SegmentRunner, gradients_of

SHARED_STATE, STATE_GRADIENT = "state", "state_gradient"


class SharedState:
    """Exchanges such state of one program with the other machines.

    Its owner sends it to the machines that use it, and adds up the gradients that come back (an all-to-one sum).
    """

    def __init__(self, program: Program, remote: ReplicaPeers, states: FlatParameters, runner: SegmentRunner) -> None:
        self._program, self._remote, self._states, self._runner = program, remote, states, runner
        self._sent = [(remote.route(SHARED_STATE, edge), cut_frames(program, edge)) for edge in program.shared_out]
        self._received = [remote.route(SHARED_STATE, edge) for edge in program.shared_in]
        self._returned = [self._route_back(edge) for edge in program.shared_in if with_gradient(program, edge)]
        owned = [edge for edge in program.shared_out if with_gradient(program, edge)]
        parts = [[self._part(edge, i) for i in with_gradient(program, edge)] for edge in owned]
        self._added = list(zip(map(self._route_back, owned), parts, strict=True))

    def _route_back(self, edge: TransferEdge) -> Route:
        return self._remote.route(STATE_GRADIENT, edge, with_gradient(self._program, edge))

    def _part(self, edge: TransferEdge, i: int) -> tuple[Tensor, tuple[slice, ...]]:
        """A piece of state that another machine uses, and the part of it that it uses."""
        info = self._program.pieces[edge.pieces[i]]
        return self._states.pieces[info.tensor, info.box], slices(relative(edge.boxes[i], info.box))

    def exchange(self, step: int) -> None:
        """Send state of this machine that others use, and receive what this one uses of theirs."""
        self._remote.check_same_plan()
        self._states.refresh()
        for route, frames in self._sent:
            held = {piece: self._runner.state(piece) for piece in route.pieces}
            # A copy: the parameters change before the peer has surely read them.
            self._remote.send(route, step, 0, [frame.clone() for frame in take_frames(frames, held)])
        for route in self._received:
            for piece, tensor in zip(route.pieces, self._remote.await_tensors(route, step), strict=True):
                self._runner.take(piece, tensor)

    def return_gradients(self, step: int) -> None:
        """Send the gradients of others' state back to its owners, and add up those that come back for ours."""
        for route in self._returned:
            self._remote.send(route, step, 0, gradients_of(route.pieces, self._runner.shared_state))
        for route, parts in self._added:
            for (piece, where), tensor in zip(parts, self._remote.await_tensors(route, step), strict=True):
                assert piece.grad is not None
                piece.grad[where] += tensor
        self._states.collect()
