"""Where gradients end."""

import torch

from cutset.partition.capture.gradient_leaves import leaves_of_gradient, outside


def test_leaves_of_a_gradient() -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    assert leaves_of_gradient(torch.ones(2)) == []
    assert leaves_of_gradient(a)[0] is a
    found = leaves_of_gradient((a * b).detach() + a * c * a)
    assert {id(leaf) for leaf in found} == {id(a), id(c)}
    assert not any(outside(leaf, [c, a]) for leaf in found)
    assert any(outside(leaf, [a, b]) for leaf in found)
