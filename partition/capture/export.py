"""From a module to a `Graph` by torch.export on fake CPU tensors, the loss included, without allocating a weight.

Training and evaluation are captured separately, since an exported module cannot change its mode. Operators are not
decomposed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ...errors import BadInput
from ..draft.axis_inference import build_graph
from ..draft.draft import Draft
from ..draft.untrained import freeze_untrained
from ..ir.garbage import leave_garbage
from ..ir.graph import Graph
from ..operators.generator_state import thread_generator_state
from ..operators.step_module import STEP, StepModule
from ..recurrence.recurrent_call import Unroller
from ..repeats.graph_segment import CannotRepeat
from ..repeats.layer_chains import LayerChain, hide_skipped_layers, list_skipped_tensors
from ..repeats.repeated_layers import tell_of_objects
from ..trace.deferred_code import defer_code
from ..trace.known_conditions import draw_what_matters
from .exported_draft import check_constants, draft_exported, list_state_names
from .grown_draft import grow_draft
from .traced_code import keep_quiet, run_as_traced
from .tracing_error import describe_failure
from .tried_step import StepRequest, TriedStep, compare_steps, try_step


class _Traced(nn.Module):
    """What is traced: a step, which may be a leaf module itself."""

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        results: Tensor | tuple[Tensor, ...] = self.step(inputs, targets)
        return results


class StepCapture:
    """Captures a step. Of several steps of a model all may be tried before one is traced: traces take longer."""

    def __init__(self, request: StepRequest) -> None:
        self._request = request
        self._tried: TriedStep | None = None

    @draw_what_matters
    @leave_garbage()
    def prepare(self) -> None:
        """Try the step; raise what `finish` would, but for what a trace alone shows."""
        self._tried = try_step(self._request)

    @draw_what_matters
    @leave_garbage()
    def finish(self) -> tuple[Graph, dict[str, Tensor]]:
        """Return the graph, and the constants of the model's code.

        BadInput where the example does not fit, Untraceable where the model cannot be traced, both naming the source
        line.
        """
        # `draw_what_matters` may call this again, with random numbers that were not drawn before: then all is anew.
        tried, self._tried = self._tried, None
        others_ran = tried is not None
        tried = tried or try_step(self._request)
        request = self._request
        with tried.name_failures():
            chains, draft, constants = _trace(tried, tried.chains, after_others=others_ran)
            if request.loss is not None:
                skipped = {layer for chain in chains for layer in chain.skipped}
                tell_of_objects(tried.copies.groups, skipped, request.tell)
            if tried.is_steady and not (request.trust or chains):
                compare_steps(tried)
            graph = _build_graph(draft, request.freeze)
        return msgspec.structs.replace(graph, output=tried.layout), constants


def capture(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor] = (),
    *,
    input_names: Sequence[str] = (),
    leaf_modules: Sequence[str] = (),
    autocast: str = "",
    unrolled: bool = False,
    trust: bool = False,
    reuse: bool = True,
    freeze: bool = False,
    readers: Sequence[Callable[..., Any]] = (),
    tell: Callable[[str], None] = lambda note: None,
) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph of a training step, or of evaluation where `loss` is None, and the model code's constants.

    Parameters are as of `StepRequest`, errors as of `StepCapture.finish`.
    """
    request = StepRequest(
        model,
        loss,
        inputs,
        targets,
        input_names=input_names,
        leaf_modules=leaf_modules,
        autocast=autocast,
        unrolled=unrolled,
        trust=trust,
        reuse=reuse,
        freeze=freeze,
        readers=readers,
        tell=tell,
    )
    return StepCapture(request).finish()


def _trace(
    tried: TriedStep, chains: Sequence[LayerChain], *, after_others: bool
) -> tuple[Sequence[LayerChain], Draft, dict[str, Tensor]]:
    """Trace the step without the middle of some chains, and put it in its place; where that fails, trace all of it.

    Return also the chains whose middle was not traced. after_others: whether other steps may have run since it was
    tried; then it runs once more, so that the trace finds outside of modules what a step of its kind leaves there.
    """
    copies, request = tried.copies, tried.request
    step, notes = copies.make(chains=chains), list[str]()
    step.wanted, states, skipped = tried.probe.wanted, list_state_names(step), list_skipped_tensors(step, chains)
    trained = [tensor.requires_grad for tensor in skipped]
    if chains:
        hide_skipped_layers(step, chains)
    try:
        if after_others:
            copies.run(chains, step.wanted)
        with run_as_traced(step, copies.autocast), defer_code():
            exported = _export(_Traced(step) if STEP in copies.leaf_modules else step, step, copies.example)
        check_constants(exported.constants, request.model)
        if trained != [tensor.requires_grad for tensor in skipped]:
            raise CannotRepeat("a parameter is frozen, or is no longer, in a step")
        unroller = Unroller(notes.append) if request.unrolled else None
        draft, constants = draft_exported(exported, step, copies.autocast, unroller)
        for chain in chains:
            draft = grow_draft(draft, chain, states)
    except Exception:  # of torch or of us: it may be the middle that is missing
        if not chains:
            raise
        return _trace(tried, (), after_others=after_others)
    for note in notes:
        request.tell(note)
    return chains, draft, constants


@keep_quiet()
def _build_graph(draft: Draft, freeze: bool) -> Graph:
    if freeze:
        freeze_untrained(draft)
    return thread_generator_state(build_graph(draft))


def _export(traced: nn.Module, step: StepModule, example: tuple[Any, ...]) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(traced, example, strict=False)
    except BadInput:
        raise
    except Exception as error:
        raise describe_failure(error, step.model) from error
