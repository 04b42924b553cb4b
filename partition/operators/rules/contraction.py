"""Sharding rules of contractions: linear layers, matrix products, einsum, embeddings."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..sharding.cost_class import CONTRACTION, EMBEDDING
from ..sharding.sharding_rule import align_labels, make_labels, sharding_rule
from ..sharding.signature import Call, Composite, Label, Labels, Signature, Site

SUM_K = frozenset({"k"})


@sharding_rule("aten.linear", cost=CONTRACTION)
def linear(site: Site) -> Signature | None:
    """y[.., n] = sum_k x[.., k] W[n, k] + b[n]"""
    lead = make_labels(len(site.shape("input")) - 1)
    if len(site.shape("weight")) != 2:
        return None
    operands: dict[str, Labels] = {"input": [*lead, "k"], "weight": ["n", "k"]}
    if site["bias"] is not None:
        operands["bias"] = ["n"]
    return Signature(operands, [*lead, "n"], summed=SUM_K, once=frozenset({"bias"}), work=2.0)


@sharding_rule("aten.bilinear", cost=CONTRACTION)
def bilinear(site: Site) -> Signature | None:
    """y[.., n] = sum_{k, l} x[.., k] W[n, k, l] z[.., l] + b[n]"""
    lead = make_labels(len(site.output.shape) - 1)
    operands: dict[str, Labels] = {"input1": [*lead, "k"], "input2": [*lead, "l"], "weight": ["n", "k", "l"]}
    if site["bias"] is not None:
        operands["bias"] = ["n"]
    return Signature(operands, [*lead, "n"], summed=frozenset({"k", "l"}), once=frozenset({"bias"}), work=2.0)


# Products of two ---------------------------------------------------------------------------------------------------


@sharding_rule("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot", cost=CONTRACTION)
def matmul(site: Site) -> Signature | None:
    """y[.., i, j] = sum_k a[.., i, k] b[.., k, j], the leading dimensions broadcast; of vectors without i or j."""
    right_name = next(name for name in ("other", "mat2", "vec", "tensor") if site[name] is not None)
    left, right = site.shape("self"), site.shape(right_name)
    if not left or not right:
        return None
    rows, columns = ["i"] * (len(left) > 1), ["j"] * (len(right) > 1)
    out = site.output.shape
    out = out[: len(out) - len(rows) - len(columns)]
    lead = make_labels(len(out), "b")
    operands: dict[str, Labels] = {
        "self": [*align_labels(left[:-2], out, lead), *rows, "k"],
        right_name: [*align_labels(right[:-2], out, lead), "k", *columns],
    }
    return Signature(operands, [*lead, *rows, *columns], summed=SUM_K, work=2.0)


def _grouped_box(call: Call) -> Tensor:
    """Compute the rows of each group with its matrix; which of the rows of this box these are follows from `offs`."""
    rows, matrices = call["self"], call["mat2"]
    ends = torch.searchsorted(call.indices(0), call["offs"].to(torch.int64))
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    parts = [rows[start:end] @ matrix for start, end, matrix in zip(starts, ends, matrices, strict=True)]
    return torch.cat([*parts, rows[ends[-1] :] @ matrices[-1] * 0])


@sharding_rule("aten._grouped_mm", cost=CONTRACTION, local=_grouped_box)
def grouped_mm(site: Site) -> Signature | None:
    """y[s, n] = sum_k x[s, k] W[g, k, n], where row s is of group g: offs[g - 1] <= s < offs[g]."""
    if len(site.shape("self")) != 2 or len(site.shape("mat2")) != 3 or site["offs"] is None or site["bias"] is not None:
        return None
    operands: dict[str, Labels] = {"self": ["s", "k"], "mat2": [None, "k", "n"], "offs": [None]}
    return Signature(operands, ["s", "n"], summed=SUM_K, work=2.0)


@sharding_rule("aten.outer", "aten.ger", cost=CONTRACTION)
def outer(site: Site) -> Signature | None:
    """y[i, j] = a[i] b[j]"""
    return Signature({"self": ["i"], "vec2": ["j"]}, ["i", "j"])


@sharding_rule("aten.inner", cost=CONTRACTION)
def inner(site: Site) -> Signature | None:
    """y[.., ..] = sum_k a[.., k] b[.., k]"""
    left, right = site.shape("self"), site.shape("other")
    if not left or not right:
        return None
    rows, columns = make_labels(len(left) - 1, "i"), make_labels(len(right) - 1, "j")
    return Signature({"self": [*rows, "k"], "other": [*columns, "k"]}, [*rows, *columns], summed=SUM_K, work=2.0)


@sharding_rule("aten.tensordot", cost=CONTRACTION)
def tensordot(site: Site) -> Signature | None:
    """y[i.., j..] = sum_k.. a[i.., k..] b[k.., j..], the dimensions k given by number."""
    left: list[Label] = list(make_labels(len(site.shape("self")), "i"))
    right: list[Label] = list(make_labels(len(site.shape("other")), "j"))
    summed: list[str] = []
    for a, b in zip(site["dims_self"], site["dims_other"], strict=True):
        if site.shape("self")[a] != site.shape("other")[b]:  # one of them is broadcast
            return None
        summed.append(f"k{len(summed)}")
        left[a] = right[b] = summed[-1]
    output = [label for label in (*left, *right) if label not in summed]
    return Signature({"self": left, "other": right}, output, summed=frozenset(summed), work=2.0)


@sharding_rule("aten.kron", cost=CONTRACTION)
def kron(site: Site) -> Signature | None:
    """y[.., (i, j), ..] = a[.., i, ..] b[.., j, ..]"""
    left, right = site.shape("self"), site.shape("other")
    rank = len(site.output.shape)
    a, b = ([1] * (rank - len(shape)) + list(shape) for shape in (left, right))
    rows, columns = make_labels(rank, "i"), make_labels(rank, "j")
    output = [Composite(((rows[d], a[d]), (columns[d], b[d]))) for d in range(rank)]
    return Signature({"self": rows[rank - len(left) :], "other": columns[rank - len(right) :]}, output)


@sharding_rule("aten.linalg_vecdot", cost=CONTRACTION)
def vecdot(site: Site) -> Signature | None:
    """y[..] = sum_k a[.., k, ..] b[.., k, ..]"""
    if site.shape("x") != site.shape("y"):
        return None
    labels = make_labels(len(site.shape("x")))
    summed = labels[site["dim"] % len(labels)]
    output = [label for label in labels if label != summed]
    return Signature({"x": labels, "y": labels}, output, summed=frozenset({summed}), work=2.0)


# A product and a sum -----------------------------------------------------------------------------------------------


def _add_product(call: Call) -> Tensor:
    """Run the operator, for all parts of a sum but the first without the tensor that is added."""
    if call["self"] is not None:
        return call.run_torch()
    return call.run_torch(self=torch.zeros((), dtype=call.dtype))


@sharding_rule(
    "aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.addr", cost=CONTRACTION, local=_add_product
)
def add_product(site: Site) -> Signature | None:
    """y = beta c + alpha a b, c broadcast; addbmm sums over the batch too."""
    name = site.target.split(".")[1]
    left, right, output = {
        "addmm": (["i", "k"], ["k", "j"], ["i", "j"]),
        "baddbmm": (["b", "i", "k"], ["b", "k", "j"], ["b", "i", "j"]),
        "addbmm": (["b", "i", "k"], ["b", "k", "j"], ["i", "j"]),
        "addmv": (["i", "k"], ["k"], ["i"]),
        "addr": (["i"], ["j"], ["i", "j"]),
    }[name]
    first, second = [argument for argument in site.tensors if argument != "self"]
    operands: dict[str, Labels] = {
        "self": align_labels(site.shape("self"), site.output.shape, output),
        first: left,
        second: right,
    }
    summed = frozenset(left) - frozenset(output)
    return Signature(operands, output, summed=summed, once=frozenset({"self"}), work=2.0)


# Any product of any number -----------------------------------------------------------------------------------------


@sharding_rule("aten.einsum", cost=CONTRACTION)
def einsum(site: Site) -> Signature | None:
    """The labels are the equation's letters; opaque where one stands twice in an operand, which is a diagonal."""
    left, arrow, right = site["equation"].replace(" ", "").partition("->")
    shapes = [tensor.shape for tensor in site["tensors"]]
    terms = [_letters(term, len(shape)) for term, shape in zip(left.split(","), shapes, strict=True)]
    output = _letters(right if arrow else _imply_operands(left), len(site.output.shape))
    if any(len(set(term)) != len(term) for term in (*terms, output)):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes |= {letter: max(size, sizes.get(letter, 1)) for letter, size in zip(term, shape, strict=True)}
    operands: dict[str, Labels] = {}
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        pairs = zip(term, shape, strict=True)
        operands[f"tensors[{i}]"] = [letter if size == sizes[letter] else None for letter, size in pairs]
    work = _flops(terms, output, sizes) / math.prod(sizes.values())
    return Signature(operands, output, summed=frozenset(sizes) - frozenset(output), work=work)


def _letters(term: str, rank: int) -> list[str]:
    """Return one label for each dimension; those of "..." are counted from the right, where they broadcast."""
    first, dots, last = term.partition("...")
    count = rank - len(first) - len(last)
    return [*first, *(f".{d}" for d in range(count, 0, -1) if dots), *last]


def _imply_operands(left: str) -> str:
    """Return the output of an equation without an arrow: what "..." stands for, then the letters that stand once."""
    letters = left.replace("...", "").replace(",", "")
    return "..." * ("..." in left) + "".join(sorted(letter for letter in letters if letters.count(letter) == 1))


def _flops(terms: Sequence[Sequence[str]], output: Sequence[str], sizes: Mapping[str, int]) -> float:
    """Return the FLOPs from left to right, where each letter is summed over as soon as no later tensor has it."""
    held, total = set(terms[0]), 0.0
    for i, term in enumerate(terms[1:], start=1):
        together = held | set(term)
        total += 2.0 * math.prod(sizes[letter] for letter in together)
        held = together & set(output).union(*terms[i + 1 :])
    return total or float(math.prod(sizes.values()))


# Embeddings --------------------------------------------------------------------------------------------------------


def _embedding(call: Call) -> Tensor:
    """Look up the rows that this box has; the indices of other boxes' rows get zeros."""
    rows, padding = call.indices(0, "weight"), call["padding_idx"]
    position = torch.full(call.shape("weight")[:1], -1).index_copy(0, rows, torch.arange(len(rows)))
    indices: Tensor = call["indices"]
    here = position.index_select(0, indices.flatten()).reshape(indices.shape)
    values = call.run_torch(indices=here.clamp(min=0), padding_idx=int(position[padding]) if padding >= 0 else -1)
    return values.masked_fill((here < 0).unsqueeze(-1), 0)


@sharding_rule("aten.embedding", cost=EMBEDDING, local=_embedding)
def embedding(site: Site) -> Signature | None:
    """y[.., d] = sum_v [index[..] = v] W[v, d]: for an index only one row of W counts, the others cost nothing."""
    if site["scale_grad_by_freq"]:  # counts the indices of the whole batch
        return None
    lead = make_labels(len(site.shape("indices")), "i")
    operands: dict[str, Labels] = {"weight": ["v", "d"], "indices": lead}
    return Signature(operands, [*lead, "d"], summed=frozenset({"v"}), work=1 / site.shape("weight")[0])


@sharding_rule("aten.embedding_bag", cost=EMBEDDING)
def embedding_bag(site: Site) -> Signature | None:
    """y[b, d] = sum, mean or maximum of W[index, d] over the indices of bag b; the other results stay whole."""
    if len(site.output.shape) != 2 or site["scale_grad_by_freq"] or site["@output"]:
        return None
    operands: dict[str, Labels] = {name: [None] * len(tensor.shape) for name, tensor in site.tensors.items()}
    operands["weight"] = [None, "d"]
    return Signature(operands, ["b", "d"], fixed=frozenset({"b"}))
