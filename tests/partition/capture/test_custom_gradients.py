"""Where gradients end."""

import torch

from cutset.partition.capture.custom_gradients import find_gradient_leaves, is_outside


def test_leaves_of_a_gradient() -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    assert find_gradient_leaves(torch.ones(2)) == []
    assert find_gradient_leaves(a)[0] is a
    found = find_gradient_leaves((a * b).detach() + a * c * a)
    assert {id(leaf) for leaf in found} == {id(a), id(c)}
    assert not any(is_outside(leaf, [c, a]) for leaf in found)
    assert any(is_outside(leaf, [a, b]) for leaf in found)
