"""FLOPs of operators of torch that do more than one for each element, and that torch's own counter does not know.

A formula gets the operator's arguments with shapes in place of tensors, as `register_flop_formula` of torch has it; a
multiplication and an addition are two FLOPs. Those of linear algebra are the leading terms of LAPACK's algorithms
(Golub and Van Loan, "Matrix Computations", 4th edition).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Shape = Sequence[int]


def _matrix_vector(matrix: Shape, vector: Shape, **rest: Any) -> int:
    return 2 * math.prod(matrix)


def _added_matrix_vector(added: Shape, matrix: Shape, vector: Shape, *rest: Any, **more: Any) -> int:
    return 2 * math.prod(matrix)


def _sum_of_products(left: Shape, right: Shape, **rest: Any) -> int:
    return 2 * math.prod(left)


def _added_batches(added: Shape, left: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    return 2 * math.prod(left) * right[-1]


def _grouped_product(left: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    """Rows, columns or summed elements of a product, or matrices, in groups: each number of `left` meets a row."""
    return 2 * math.prod(left) * right[-1]


def _attention(query: Shape, key: Shape, value: Shape, *rest: Any, **more: Any) -> int:
    """Two products: queries by keys, and weights by values."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent_layer(inputs: Shape, weight: Shape, recurrent: Shape, *rest: Any, **more: Any) -> int:
    """One direction of a layer of an LSTM: each step multiplies by both matrices."""
    return 2 * math.prod(inputs[:-1]) * (math.prod(weight) + math.prod(recurrent))


def _trilinear(
    one: Shape, two: Shape, three: Shape, expand1: Shape, expand2: Shape, expand3: Shape, *rest: Any, **more: Any
) -> int:
    """A sum of products of three tensors, which are broadcast along their `expand` dimensions."""
    expanded = []
    for shape, places in ((one, expand1), (two, expand2), (three, expand3)):
        sizes = list(shape)
        for place in sorted(places):
            sizes.insert(place, 1)
        expanded.append(sizes)
    points: int = math.prod(max(lengths) for lengths in zip(*expanded, strict=True))
    return 3 * points


def _distances(one: Shape, two: Shape, *rest: Any, out_shape: Shape, **more: Any) -> int:
    return 3 * math.prod(out_shape) * one[-1]


def _convolution_over_time(inputs: Shape, weight: Shape, *rest: Any, out_shape: Shape, **more: Any) -> int:
    return 2 * math.prod(out_shape) * weight[0] * weight[1]


def _fourier(inputs: Shape, dims: Sequence[int], *rest: Any, out_shape: Shape, **more: Any) -> int:
    """5 n log2 n of a complex transform, of which real values on one side take half."""
    points = min(math.prod(inputs), math.prod(out_shape))
    length = math.prod(max(inputs[dim], out_shape[dim]) for dim in dims)
    return int(5 * points * math.log2(max(2, length)))


def _of_matrices(factor: float) -> Callable[..., int]:
    """Return the formula of an algorithm that takes `factor` * m * n * min(m, n) FLOPs for each matrix."""

    def count(matrix: Shape, *rest: Any, **more: Any) -> int:
        return int(factor * math.prod(matrix) * min(matrix[-2:]))

    return count


def _solve(matrix: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    """A factorisation, and two triangular systems for each column."""
    return int(2 / 3 * math.prod(matrix) * matrix[-1]) + 2 * matrix[-1] * math.prod(right)


def _solve_triangular(matrix: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    return matrix[-1] * math.prod(right)


FORMULAS: Mapping[Any, Callable[..., int]] = {
    aten.mv: _matrix_vector,
    aten.addmv: _added_matrix_vector,
    aten.dot: _sum_of_products,
    aten.vdot: _sum_of_products,
    aten.addbmm: _added_batches,
    aten._addmm_activation: _added_batches,
    aten._grouped_mm: _grouped_product,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten.mkldnn_rnn_layer: _recurrent_layer,
    aten._trilinear: _trilinear,
    aten._cdist_forward: _distances,
    aten._euclidean_dist: _distances,
    aten.conv_tbc: _convolution_over_time,
    aten._fft_r2c: _fourier,
    aten._fft_c2r: _fourier,
    aten._fft_c2c: _fourier,
    aten.linalg_cholesky_ex: _of_matrices(1 / 3),
    aten._linalg_det: _of_matrices(2 / 3),
    aten._linalg_slogdet: _of_matrices(2 / 3),
    aten.linalg_lu: _of_matrices(2 / 3),
    aten.linalg_lu_factor_ex: _of_matrices(2 / 3),
    aten.linalg_ldl_factor_ex: _of_matrices(1 / 3),
    aten.linalg_inv_ex: _of_matrices(2),
    aten.linalg_qr: _of_matrices(8 / 3),
    aten.linalg_lstsq: _of_matrices(4 / 3),
    aten._linalg_eigh: _of_matrices(9),
    aten._linalg_svd: _of_matrices(21),
    aten.linalg_eig: _of_matrices(25),
    aten.linalg_matrix_exp: _of_matrices(20),
    aten._linalg_solve_ex: _solve,
    aten.linalg_solve_triangular: _solve_triangular,
}
