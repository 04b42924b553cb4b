"""Rules that are found by running: what they are, and that boxes by them are the whole operator."""

import pytest
import torch
from found_calls import CALLS, EXPECTED, as_call, describe, search
from rule_calls import Given, assert_boxes_are_the_whole, b, build, drafted, given, n, x
from torch._subclasses.fake_tensor import FakeTensorMode

from cutset.partition.discovery.search import search_rule
from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.ir.graph import FOUND

# Of torch's own advice, which some operators give once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("name", CALLS)
def test_running_an_operator_finds_what_follows_what(name: str) -> None:
    assert describe(search(CALLS[name])) == EXPECTED[name]


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_by_a_found_rule_are_the_whole(name: str, finer: bool) -> None:
    op = build_graph(drafted(CALLS[name], finer)[0]).ops[-1]
    assert op.sharding_rule == FOUND
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


# Operators that look as if they could be cut where they are seen at a few values, or along one dimension more.
def coupled() -> dict[str, Given]:
    return {
        "cummax": given("cummax", x(6), 0, output=0),
        "sort": given("sort", x(6), 0, output=0),
        "cumsum": given("cumsum", x(6), 0),
        "median": given("nanmedian", x(6)),
        "histogram of what is there": given("histc", x(50), 10),
        "masked_scatter": given("masked_scatter", x(6), b(6), x(6)),
        "softmax": given("aten.softmax.int", x(6), 0),
        "layer_norm": given("layer_norm", x(6), [6]),
        "roll": given("roll", x(6), [1], [0]),
        "flip": given("flip", x(6), [0]),
        "tril": given("tril", x(5, 5)),
        "correlation": given("corrcoef", x(5, 6)),
        "largest distance": given("dist", x(5), x(5), float("inf")),
        "mean of a loss": given("aten.ctc_loss.Tensor", x(7, 3, 5), n(4, 3, 4) + 1, n(1, 3) + 7, n(1, 3) + 3, 0, 1),
        "index_put of repeated places": given("index_put", x(6), [n(6, 6)], x(6)),
        "renormalised": given("renorm", x(4, 4), 2.0, 1, 1.0),
    }


COUPLED = build(coupled)
PARTLY = {"tril": "", "renormalised": "1 self.1"}


@pytest.mark.parametrize("name", COUPLED)
def test_what_depends_on_all_of_a_dimension_does_not_follow_it(name: str) -> None:
    assert describe(search(COUPLED[name])) == PARTLY.get(name, "")


@pytest.mark.parametrize(
    "case",
    [
        given("aten.bernoulli.default", torch.rand(4, 5)),
        given("aten.bernoulli.p", torch.rand(4, 5), 0.3),
        given("rand_like", torch.rand(4, 5)),
        given("multinomial", torch.rand(4, 5), 2),
        given("poisson", torch.rand(4, 5)),
    ],
    ids=lambda case: case.target,
)
def test_an_operator_that_draws_has_no_found_rule(case: Given) -> None:
    assert search(case) is None


def test_an_operator_that_overwrites_or_of_a_library_has_no_found_rule() -> None:
    assert search(given("aten.add_.Tensor", x(4, 5), x(4, 5))) is None
    with torch.library._scoped_library("cutset_test_search", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda tensor: 2 * tensor, "CompositeExplicitAutograd")
        assert search(given("cutset_test_search.double.default", torch.zeros(4, 5))) is None


def test_neither_a_trace_nor_the_mode_without_gradients_changes_what_is_found() -> None:
    call = as_call(CALLS["cholesky_solve"])
    with FakeTensorMode(), torch.no_grad():
        assert describe(search_rule.__wrapped__(call)) == EXPECTED["cholesky_solve"]


def test_torchs_generator_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    search_rule.__wrapped__(as_call(CALLS["rfft"]))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_is_found_again_whatever_was_drawn_before() -> None:
    call = as_call(CALLS["ctc_loss"])
    first = search_rule.__wrapped__(call)
    with torch.random.fork_rng():
        torch.manual_seed(17)
        assert search_rule.__wrapped__(call) == first


def test_a_large_call_is_found_in_small_shapes() -> None:
    large = given("fft_rfft2", torch.zeros(256, 64, 64, 64))
    assert describe(search(large)) == "0 self.0; 1 self.1"
