"""Rows of normalisation and softmax."""

from torch import Tensor

from .row import dims, row
from .signature import Call, Label, Labels, Parts, Signature, Site


@row("aten.layer_norm", "aten.rms_norm")
def layer_norm(site: Site) -> Signature | None:
    """The last dimensions are normalised together and stay whole."""
    labels = dims(len(site.output.shape))
    last = labels[len(labels) - len(site["normalized_shape"]) :]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: last for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset(last), work=5.0)


@row("aten.batch_norm")
def batch_norm(site: Site) -> Signature | None:
    """Channel by channel; the statistics of a training batch keep batch and space whole."""
    labels = dims(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    names = ("weight", "bias", "running_mean", "running_var")
    operands |= {name: [labels[1]] for name in names if site[name] is not None}
    fixed = frozenset(label for i, label in enumerate(labels) if site["training"] and i != 1)
    return Signature(operands, labels, fixed=fixed, work=5.0)


@row("aten.instance_norm")
def instance_norm(site: Site) -> Signature | None:
    """Channel by channel and sample by sample; running statistics are of the whole batch."""
    labels = dims(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    names = ("weight", "bias", "running_mean", "running_var")
    operands |= {name: [labels[1]] for name in names if site[name] is not None}
    fixed = set(labels[2:] if site["use_input_stats"] else ())
    fixed |= set(labels[:1] if site["running_mean"] is not None and site["use_input_stats"] else ())
    return Signature(operands, labels, fixed=frozenset(fixed), work=5.0)


def _group_norm(call: Call) -> Tensor:
    of_a_group = call.shape()[1] // call["num_groups"]
    return call.plain(num_groups=call.local_shape[1] // of_a_group)


@row("aten.group_norm", local=_group_norm)
def group_norm(site: Site) -> Signature | None:
    """Groups of channels, and samples, by themselves; a group and its space stay whole."""
    groups, (_, channels, *space) = site["num_groups"], site.output.shape
    grouped = Parts((("g", groups), ("c", channels // groups)))
    labels: list[Label] = ["b", grouped, *dims(len(space), "p")]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: [grouped] for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset({"c", *dims(len(space), "p")}), work=5.0)


@row("aten._weight_norm")
def weight_norm(site: Site) -> Signature | None:
    """w = v * g / |v|, the norm over all dimensions but `dim` (Salimans and Kingma 2016)."""
    labels, dim = dims(len(site.output.shape)), site["dim"]
    kept = {labels[dim % len(labels)]} if dim != -1 else set()  # -1 is one norm of all
    scale: list[Label] = [label if label in kept else None for label in labels[-len(site.shape("g")) :]]
    return Signature({"v": labels, "g": scale if site.shape("g") else []}, labels, fixed=frozenset(labels) - kept)


@row("aten.softmax", "aten.log_softmax", "aten._softmax", "aten._log_softmax")
def softmax(site: Site) -> Signature | None:
    """Normalised along `dim`, which stays whole."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels, fixed=frozenset({labels[site["dim"]]} if labels else ()), work=4.0)
