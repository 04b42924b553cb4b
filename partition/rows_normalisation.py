"""Rows of normalisation and softmax."""

from .row import dims, row
from .signature import Labels, Signature, Site


@row("aten.layer_norm")
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


@row("aten.softmax", "aten.log_softmax", "aten._softmax", "aten._log_softmax")
def softmax(site: Site) -> Signature | None:
    """Normalised along `dim`, which stays whole."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels, fixed=frozenset({labels[site["dim"]]} if labels else ()), work=4.0)
