"""Boxes of contractions."""

import torch
from rule_calls import Given, build, drafted, given, n, x
from rule_tests import RuleAndWholeCallTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import contraction


def products() -> dict[str, Given]:
    return {
        "linear": given("linear", x(5, 4), x(6, 4)),
        "linear bias": given("linear", x(5, 4), x(6, 4), x(6)),
        "linear vector": given("linear", x(4), x(6, 4), x(6)),
        "linear 3-d": given("linear", x(2, 3, 4), x(6, 4), x(6)),
        "bilinear": given("bilinear", x(5, 4), x(5, 3), x(6, 4, 3), x(6)),
        "bilinear 3-d": given("bilinear", x(2, 5, 4), x(2, 5, 3), x(6, 4, 3)),
        "matmul": given("matmul", x(4, 5), x(5, 3)),
        "matmul broadcast": given("matmul", x(2, 1, 4, 5), x(3, 5, 6)),
        "matmul vector": given("matmul", x(2, 4, 5), x(5)),
        "vector matmul": given("matmul", x(4), x(2, 4, 3)),
        "vectors": given("matmul", x(6), x(6)),
        "mm": given("mm", x(4, 5), x(5, 3)),
        "bmm": given("bmm", x(2, 4, 5), x(2, 5, 3)),
        "mv": given("mv", x(4, 5), x(5)),
        "dot": given("dot", x(6), x(6)),
        "vdot": given("vdot", x(6), x(6)),
        "outer": given("outer", x(4), x(5)),
        "ger": given("ger", x(4), x(5)),
        "inner": given("inner", x(2, 4, 5), x(3, 5)),
        "kron": given("kron", x(4, 3), x(2, 5)),
        "kron of a vector": given("kron", x(3), x(2, 4)),
        "vecdot": given("linalg_vecdot", x(4, 5), x(4, 5)),
        "vecdot first": given("linalg_vecdot", x(4, 5), x(4, 5), dim=0),
        "tensordot": given("tensordot", x(2, 4, 5), x(5, 3, 4), [1, 2], [2, 0]),
        "grouped": given("_grouped_mm", x(6, 4).float(), x(2, 4, 8).float(), torch.tensor([2, 6], dtype=torch.int32)),
        "tensordot outer": given("tensordot", x(2, 4), x(5), [], []),
    }


def products_and_sums() -> dict[str, Given]:
    return {
        "addmm": given("addmm", x(3), x(4, 5), x(5, 3)),
        "addmm scaled": given("addmm", x(4, 1), x(4, 5), x(5, 3), beta=0.5, alpha=2),
        "addmm of one": given("addmm", x(1), x(4, 5), x(5, 3)),
        "baddbmm": given("baddbmm", x(4, 3), x(2, 4, 5), x(2, 5, 3), beta=2),
        "addbmm": given("addbmm", x(4, 3), x(2, 4, 5), x(2, 5, 3), alpha=0.5),
        "addmv": given("addmv", x(4), x(4, 5), x(5)),
        "addr": given("addr", x(4, 5), x(4), x(5), alpha=2),
    }


def einsums() -> dict[str, Given]:
    return {
        "einsum": given("einsum", "bhld,bhsd->bhls", [x(2, 3, 4, 5), x(2, 3, 6, 5)]),
        "einsum implied": given("einsum", "ij,jk", [x(4, 5), x(5, 3)]),
        "einsum implied order": given("einsum", "ba", [x(4, 5)]),
        "einsum sum": given("einsum", "ijk->j", [x(2, 4, 5)]),
        "einsum all": given("einsum", "i,i->", [x(4), x(4)]),
        "einsum dots": given("einsum", "...ij, ...jk -> ...ik", [x(2, 1, 4, 5), x(3, 5, 6)]),
        "einsum dots implied": given("einsum", "...i,ij", [x(2, 3, 4), x(4, 5)]),
        "einsum dots in the middle": given("einsum", "i...j->j...", [x(4, 2, 5)]),
        "einsum three": given("einsum", "bi,ij,bj->b", [x(4, 3), x(3, 5), x(4, 5)]),
        "einsum broadcast": given("einsum", "bi,bi->bi", [x(4, 1), x(4, 5)]),
        "einsum outer": given("einsum", "i,j->ji", [x(4), x(5)]),
    }


def embeddings() -> dict[str, Given]:
    padded = "aten.embedding_bag.padding_idx"
    bags, start = n(7, 9), torch.tensor([0, 2, 2, 6])
    return {
        "embedding": given("embedding", x(7, 4), n(7, 3, 5)),
        "embedding padding": given("embedding", x(7, 4), n(7, 6), 1),
        "embedding of one": given("embedding", x(6, 4), n(6)),
        "bags": given("embedding_bag", x(7, 4), bags, start, output=0),
        "bags mean": given("embedding_bag", x(7, 4), bags, start, False, 1, output=0),
        "bags maximum": given("embedding_bag", x(7, 4), bags, start, False, 2, output=0),
        "bags padded": given(padded, x(7, 4), bags, start, False, 0, False, None, False, 1, output=0),
        "bags weighted": given("embedding_bag", x(7, 4), bags, start, False, 0, False, x(9), output=0),
    }


class TestContraction(RuleAndWholeCallTests):
    rules = contraction
    calls = build(products, products_and_sums, einsums, embeddings)
    whole_calls = (
        given("linear", torch.zeros(4), torch.zeros(4)),
        given("embedding", torch.zeros(7, 4), torch.zeros(3, dtype=torch.int64), -1, True),
        given("einsum", "ii->i", [torch.zeros(4, 4)]),
        given("tensordot", torch.zeros(2, 1), torch.zeros(4, 3), [1], [0]),
    )


def test_einsum_counts_what_is_computed_from_left_to_right() -> None:
    graph = build_graph(drafted(given("einsum", "bi,ij,jk->bk", [x(2, 3), x(3, 5), x(5, 7)]), False)[0])
    assert graph.ops[-1].flops == 2 * (2 * 3 * 5 + 2 * 5 * 7)
