"""Which calls draw random numbers, and drawing again from a given state."""

import pytest
import torch

from cutset.partition.ir.random_ops import GENERATOR_BYTES, is_random, random_tensor_name, run_with_generator


@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("aten.relu.default", {}, False),
        ("aten.rand_like.default", {}, True),
        ("aten.bernoulli.p", {"p": 0.0}, True),
        ("aten.dropout.default", {"p": 0.5, "train": True}, True),
        ("aten.dropout.default", {"p": 0.5, "train": False}, False),
        ("aten.lstm.input", {"dropout": 0.3, "train": True}, True),
        ("aten.lstm.input", {"dropout": 0.0, "train": True}, False),
        ("aten.scaled_dot_product_attention.default", {"dropout_p": 0.0}, False),
        ("aten.scaled_dot_product_attention.default", {"dropout_p": 0.1}, True),
    ],
)
def test_which_calls_draw(target: str, arguments: dict[str, object], expected: bool) -> None:
    assert is_random(target, arguments) is expected


def test_drawing_starts_from_a_state_and_leaves_the_generator_alone() -> None:
    state = torch.Generator().manual_seed(5).get_state()
    assert state.numel() == GENERATOR_BYTES
    before = torch.get_rng_state()
    first, after = run_with_generator(state, lambda: torch.rand(3))
    second, _ = run_with_generator(after, lambda: torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(first, torch.rand(3, generator=generator))
    assert torch.equal(second, torch.rand(3, generator=generator))


def test_the_generator_is_left_alone_by_what_fails_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        run_with_generator(torch.Generator().manual_seed(1).get_state(), lambda: 1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_name_of_what_is_drawn() -> None:
    assert random_tensor_name("dropout_1") == "dropout_1.random"
