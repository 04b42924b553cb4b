"""`cutset.plan` and `cutset.replica`: a module in hand, planned and computed by threads of this process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ...errors import BadInput
from ...models.task import Data
from ...partition.capture.export import capture
from ...partition.capture.exported_draft import collect_state
from ...partition.capture.leaf_search import capture_by_leaf_modules
from ...partition.cluster.machines import Cluster
from ...partition.dataflow.carried_cut import carry_cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.graph import Graph
from ...partition.ir.module_copy import copy_module
from ...partition.placement.from_plan import plan_placement
from ...partition.placement.placement_file import Placement
from ...partition.placement.to_cut import cut_from_placement
from ...partition.recurrence.recurrent_call import has_recurrent
from ...runtime.replica.replica import Replica
from ...runtime.worker.program import programs
from ..blame import blame
from . import weight_source as weights
from .lazy_modules import initialise_lazy_modules, is_lazy
from .load_task import mean_square
from .plan_request import PlanRequest
from .trace_check import check_trace

if TYPE_CHECKING:
    from torch import Tensor, nn


def plan_model(
    model: "nn.Module",
    inputs: "Tensor | Sequence[Tensor]",
    targets: "Tensor | Sequence[Tensor]" = (),
    *,
    loss: "Callable[..., Tensor]" = mean_square,
    machines: int | Cluster = 2,
    fewer: bool = False,
    objective: str = "time",
    pins: "Sequence[str]" = (),
    micro_batches: int = 1,
    leaf_modules: "Sequence[str]" = (),
    autocast: str = "",
    trust_trace: bool = False,
    seed: int = 0,
    candidates: str = "",
    name: str = "",
) -> Placement:
    """Return the best placement of a module over `machines` machines (or those of a cluster), all of them used.

    A number of machines means, as for the command, so many processes of this machine as it was measured, or what
    CUTSET_CLUSTER names; nothing is measured here, and where nothing has been, machines are desktops. inputs, targets:
    an example batch, of which only shapes and dtypes count; `loss(output, *targets)` gives a scalar, by default the
    mean square of the output. Of a lazy module a copy gets its sizes from it.
    fewer: some machines may be left out, where that is better. objective: what to minimise: "time", "bytes" or
    "memory". pins: "GLOB=MACHINE", modules that must be on a machine. leaf_modules: globs; a module whose name matches
    one is one operator, not traced inside. autocast: the dtype in which torch.autocast computes model and loss, if any.
    trust_trace: do not compare what is traced with plain torch. candidates: the kind of plans to choose among
    ("metis"). name: the import string to note in the placement.
    """
    example = _as_example(inputs, targets, loss)
    model = _with_sizes(model, example, seed)
    request = PlanRequest(machines) if isinstance(machines, int) else None
    cluster = machines if isinstance(machines, Cluster) else PlanRequest(machines).load_cluster()

    def attempt(tried: tuple[str, ...], unrolled: bool = False) -> "tuple[Graph, dict[str, Tensor]]":
        settings: dict[str, Any] = {"leaf_modules": tried, "autocast": autocast, "trust": trust_trace}
        found = capture(model, loss, *example, unrolled=unrolled, **settings)
        if not trust_trace:
            _check(model, loss, example, *found, autocast)
        return found

    (graph, _), leaf_modules, _ = capture_by_leaf_modules(attempt, leaf_modules)
    is_unrolled = len(cluster) > 1 and has_recurrent(graph)
    unrolled = attempt(tuple(leaf_modules), unrolled=True)[0] if is_unrolled else None
    if request is not None:
        cluster = request.load_cluster(task=graph.digest, unrolled="" if unrolled is None else unrolled.digest)
    placement = plan_placement(
        graph,
        cluster,
        model=name or type(model).__name__,
        unrolled=unrolled,
        seed=seed,
        candidates=candidates,
        fewer=fewer,
        objective=objective,
        pins=pins,
        micro_batches=micro_batches,
    )
    return msgspec.structs.replace(placement, leaf_modules=list(leaf_modules), autocast=autocast)


def _check(
    model: "nn.Module",
    loss: "Callable[..., Tensor]",
    example: "tuple[Sequence[Tensor], Sequence[Tensor]]",
    graph: Graph,
    constants: "Mapping[str, Tensor]",
    autocast: str,
) -> None:
    """Compare the graph with plain torch, if the model has values and the example is a batch."""
    inputs, targets = example
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers(), *inputs, *targets)):
        return
    if len({tensor.shape[:1] for tensor in (*inputs, *targets)}) != 1:
        return
    batch = Data(tuple(inputs), tuple(targets))
    check_trace(lambda: copy_module(model), loss, batch, graph, constants, autocast=autocast, tell=lambda note: None)


def make_replica(
    model: "nn.Module",
    placement: Placement,
    inputs: "Tensor | Sequence[Tensor]",
    targets: "Tensor | Sequence[Tensor]" = (),
    *,
    loss: "Callable[..., Tensor]" = mean_square,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    training: bool = True,
) -> Replica:
    """Return the module cut as `placement` says, in threads of this process: to step, read gradients and predict.

    inputs, targets, loss: as they were planned for. checkpoint: a run folder, the checkpoint in it or a safetensors
    file, with the weights to use; by default the module's own. training: to `step`; else to `predict`, as the module
    does in evaluation mode. BadInput where the placement is of another model, CheckpointError where the weights are.
    """
    example = _as_example(inputs, targets, loss)
    model = _with_sizes(model, example, seed)
    leaf_modules, autocast = placement.leaf_modules, placement.autocast
    # The plan was checked when it was made.
    settings: dict[str, Any] = {"leaf_modules": leaf_modules, "autocast": autocast, "trust": True}
    settings["unrolled"] = placement.unrolled
    graph, constants = capture(model, loss, *example, **settings)
    dataflow = lower_cut(graph, cut_from_placement(placement, graph))
    if not training:
        evaluation, more = capture(model, None, example[0], **settings)
        dataflow = lower_cut(evaluation, carry_cut(graph, dataflow.cut, evaluation))
        constants |= more
    parts = programs(dataflow, training=training)
    own = weights.InMemoryWeights(collect_state(model, loss, constants))
    with nullcontext(own) if checkpoint is None else weights.open_weights(Path(checkpoint)) as trained:
        values = weights.FallbackWeights(trained, own)
        if checkpoint is not None:
            weights.check_weights(trained, parts, constants, where=Path(checkpoint))
        replica = Replica(parts, seed=seed, model=model, loss=loss)
        for worker in replica.workers:
            weights.load_pieces(worker.states, values)
    return replica


def _as_example(
    inputs: "Tensor | Sequence[Tensor]", targets: "Tensor | Sequence[Tensor]", loss: "Callable[..., Tensor]"
) -> "tuple[Sequence[Tensor], Sequence[Tensor]]":
    """Return the example batch; BadInput where it has targets, and no loss was given that takes them."""
    example = _as_sequence(inputs), _as_sequence(targets)
    if loss is mean_square and example[1]:
        raise BadInput("E309", "targets are given without a loss", fix="loss=..., called as loss(output, *targets)")
    return example


def _as_sequence(tensors: "Tensor | Sequence[Tensor]") -> "Sequence[Tensor]":
    return tensors if isinstance(tensors, list | tuple) else (tensors,)


def _with_sizes(model: "nn.Module", example: "tuple[Sequence[Tensor], Sequence[Tensor]]", seed: int) -> "nn.Module":
    """Return the model, or where it is lazy a copy that has its sizes, with values drawn from the seed."""
    if not is_lazy(model):
        return model
    device = next(tensor.device.type for tensor in (*model.parameters(), *model.buffers()))
    batch = Data(tuple(torch.zeros_like(tensor, device=device) for tensor in example[0]), ())
    with blame("E321", "the model, run on zeros of the shapes of the example batch,", fix="check the example batch"):
        return initialise_lazy_modules(copy_module(model), lambda: batch, seed=seed, device=device)
