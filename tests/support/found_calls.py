"""Calls of operators without a written rule, and what they may be cut along: (dimension of the result, of operands)."""

from collections.abc import Mapping

import torch
from rule_calls import Given, build, drafted, given, n, x
from torch import Tensor

from cutset.partition.discovery.operator_call import OperatorCall, describe_call
from cutset.partition.discovery.rule_data import FoundRule
from cutset.partition.discovery.search import search_rule


def z(*shape: int) -> Tensor:
    """Complex numbers."""
    return torch.complex(x(*shape), x(*shape))


def definite(*shape: int) -> Tensor:
    """Positive definite matrices."""
    a = x(*shape)
    return a @ a.mT + shape[-1] * torch.eye(shape[-1], dtype=a.dtype)


def fourier() -> dict[str, Given]:
    window = torch.hann_window(16, dtype=torch.float64)
    return {
        "fft": given("fft_fft", z(3, 4, 8)),
        "fft of a padded": given("fft_fft", x(3, 6), 9),
        "ifft": given("fft_ifft", z(4, 8), None, 0),
        "rfft": given("fft_rfft", x(3, 4, 8), 16),
        "irfft": given("fft_irfft", z(3, 4, 9), 16),
        "fft2": given("fft_fft2", z(3, 4, 5, 6)),
        "rfft2": given("fft_rfft2", x(3, 4, 8, 6)),
        "irfft2": given("fft_irfft2", z(3, 4, 8, 5), [8, 8]),
        "fftn": given("fft_fftn", z(3, 8, 6), None, [-2, -1]),
        "hfft": given("fft_hfft", z(3, 5)),
        "fftshift": given("fft_fftshift", x(3, 8), [1]),
        "stft": given("aten.stft.center", x(3, 64), 16, window=window, return_complex=True),
        "istft": given("istft", torch.stft(x(3, 64), 16, window=window, return_complex=True), 16, window=window),
    }


def linear_algebra() -> dict[str, Given]:
    return {
        "cholesky": given("linalg_cholesky", definite(5, 4, 4)),
        "cholesky_solve": given("cholesky_solve", x(5, 4, 3), definite(5, 4, 4)),
        "inv": given("linalg_inv", definite(5, 4, 4)),
        "det": given("linalg_det", x(5, 4, 4)),
        "logdet": given("logdet", definite(5, 4, 4)),
        "slogdet": given("linalg_slogdet", x(5, 4, 4), output=1),
        "solve": given("linalg_solve", definite(5, 4, 4), x(5, 4, 3)),
        "solve_triangular": given("linalg_solve_triangular", definite(5, 4, 4), x(5, 4, 3), upper=True),
        "lstsq": given("linalg_lstsq", x(5, 6, 4), x(5, 6, 3), output=0),
        "eigh": given("linalg_eigh", definite(5, 4, 4), output=0),
        "eigvalsh": given("linalg_eigvalsh", definite(5, 4, 4)),
        "svdvals": given("linalg_svdvals", x(5, 4, 3)),
        "svd": given("linalg_svd", x(5, 4, 3), False, output=1),
        "qr": given("linalg_qr", x(5, 4, 3), output=0),
        "matrix_exp": given("linalg_matrix_exp", x(5, 4, 4)),
        "matrix_power": given("linalg_matrix_power", x(5, 4, 4), 3),
        "pinv": given("aten.linalg_pinv.atol_rtol_float", x(5, 4, 3)),
    }


def others() -> dict[str, Given]:
    log_probabilities = x(7, 3, 5).log_softmax(-1)
    lengths = torch.tensor([7, 6, 7]), torch.tensor([2, 3, 1])
    weights = [x(20, 4), x(20, 5), x(20), x(20)]
    layer = (True, 1, 0.0, False, False, False)
    return {
        "affine_grid": given("affine_grid_generator", x(3, 2, 3), [3, 2, 5, 6], False),
        "index_reduce": given("index_reduce", x(7, 6), 0, n(7, 9), x(9, 6), "amax"),
        "trapezoid": given("aten.trapezoid.x", x(5, 6), x(6)),
        "cumulative_trapezoid": given("aten.cumulative_trapezoid.dx", x(5, 6)),
        "renorm": given("renorm", x(5, 6, 4), 2.0, 0, 1.0),
        "ctc_loss": given("aten.ctc_loss.Tensor", log_probabilities, n(4, 3, 4) + 1, *lengths, 0, 0),
        "ctc_loss, summed": given("aten.ctc_loss.Tensor", log_probabilities, n(4, 3, 4) + 1, *lengths, 0, 2),
        "multi_margin_loss": given("multi_margin_loss", x(6, 5), n(5, 6), 1, 1.0, None, 0),
        "multi_margin_loss, summed": given("multi_margin_loss", x(6, 5), n(5, 6), 1, 1.0, None, 2),
        "multilabel_margin_loss": given("multilabel_margin_loss", x(6, 5), n(5, 6, 5), 0),
        "lstm": given("aten.lstm.input", x(6, 3, 4), [x(1, 3, 5), x(1, 3, 5)], weights, *layer, output=0),
        "polygamma": given("polygamma", 1, x(5, 6).abs() + 1),
        "igamma": given("igamma", x(5, 6).abs(), x(5, 6).abs(), still=("self",)),
        "zeta": given("special_zeta", x(5, 6).abs() + 2, x(5, 6).abs() + 1, still=("self",)),
        "quantile": given("aten.quantile.scalar", x(5, 6), 0.3, 1),
        "vander": given("linalg_vander", x(5, 3)),
        "rnn cell": given("rnn_tanh_cell", x(6, 3), x(6, 5), x(5, 3), x(5, 5), x(5), x(5)),
        "histogram of a range": given("histc", x(50), 10, -1, 1, still=("self",)),
    }


CALLS: Mapping[str, Given] = build(fourier, linear_algebra, others)

# What running them has to find: "0 self.0 other.0" for each label, "+" in place of a dimension of the result that is
# summed.
EXPECTED = {
    "fft": "0 self.0; 1 self.1",
    "fft of a padded": "0 self.0",
    "ifft": "1 self.1",
    "rfft": "0 self.0; 1 self.1",
    "irfft": "0 self.0; 1 self.1",
    "fft2": "0 self.0; 1 self.1",
    "rfft2": "0 self.0; 1 self.1",
    "irfft2": "0 self.0; 1 self.1",
    "fftn": "0 self.0",
    "hfft": "0 self.0",
    "fftshift": "0 self.0",
    "stft": "0 self.0",
    "istft": "0 self.0",
    "cholesky": "0 self.0",
    "cholesky_solve": "0 self.0 input2.0; 2 self.2",
    "inv": "0 A.0",
    "det": "0 A.0",
    "logdet": "0 self.0",
    "slogdet": "0 A.0",
    "solve": "0 A.0 B.0; 2 B.2",
    "solve_triangular": "0 self.0 B.0; 2 B.2",
    "lstsq": "0 self.0 b.0; 2 b.2",
    "eigh": "0 self.0",
    "eigvalsh": "0 self.0",
    "svdvals": "0 A.0",
    "svd": "0 A.0",
    "qr": "0 A.0",
    "matrix_exp": "0 self.0",
    "matrix_power": "0 self.0",
    "pinv": "0 self.0",
    "affine_grid": "0 theta.0",
    "index_reduce": "1 self.1 source.1",
    "trapezoid": "0 y.0",
    "cumulative_trapezoid": "0 y.0",
    "renorm": "0 self.0",
    "ctc_loss": "0 log_probs.1 targets.0 input_lengths.0 target_lengths.0",
    "ctc_loss, summed": "+ log_probs.1 targets.0 input_lengths.0 target_lengths.0",
    "multi_margin_loss": "0 self.0 target.0",
    "multi_margin_loss, summed": "+ self.0 target.0",
    "multilabel_margin_loss": "0 self.0 target.0",
    "lstm": "1 input.1 hx[0].1 hx[1].1",
    "polygamma": "0 self.0; 1 self.1",
    "igamma": "0 self.0 other.0; 1 self.1 other.1",
    "zeta": "0 self.0 other.0; 1 self.1 other.1",
    "quantile": "0 self.0",
    "vander": "0 x.0",
    "rnn cell": "0 input.0 hx.0",
    "histogram of a range": "+ self.0",
}


def as_call(case: Given) -> OperatorCall:
    """The call as data."""
    draft = drafted(case, False)[0]
    op = draft.ops[-1]
    return describe_call(op.target, op.arguments, draft.tensors, draft.tensors[op.outputs[0]])


def search(case: Given) -> FoundRule | None:
    """The rule of a call."""
    return search_rule(as_call(case))


def describe(rule: FoundRule | None) -> str:
    """A rule in short, as in EXPECTED."""
    labels = () if rule is None else rule.labels
    return "; ".join(
        " ".join(["+" if label.output is None else str(label.output), *(f"{a}.{d}" for a, d in label.operands)])
        for label in labels
    )
