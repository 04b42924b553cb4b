import msgspec
import pytest
import torch

from cutset.errors import UsageError
from cutset.ps.methods.registry import AnyMethod, parse_method
from cutset.ps.methods.sandblaster import SOLVERS, Sandblaster
from cutset.ps.optimizers.standard import SGD
from cutset.ps.sandblaster.gradient_descent import ConjugateGradients
from cutset.ps.sandblaster.solver import Portions


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("history=0", "E260"),
        ("iterations=0", "E260"),
        ("search=0", "E260"),
        ("evaluations=-1", "E260"),
        ("l2=-1", "E266"),
        ("l1=nan", "E266"),
        ("step=0", "E266"),
        ("step=inf", "E266"),
        ("c1=0", "E266"),
        ("c2=1", "E266"),
        ("c1=0.1,c2=0.05", "E266"),
        ("c1=0.5", "E266"),
        ("fraction=0", "E266"),
        ("fraction=1.5", "E266"),
        ("overlap=0", "E266"),
        ("form=three", "E268"),
        ("solver=newton", "E268"),
        ("curvature=ignore", "E268"),
        ("solver=gd,l1=0.1", "E268"),
        ("torch_path=true,solver=cg", "E268"),
        ("torch_path=true,l1=0.1", "E268"),
        ("torch_path=true,curvature=damp", "E268"),
        ("torch_path=true,fraction=0.5", "E268"),
        ("torch_path=perhaps", "E254"),
        ("size=3", "E254"),
    ],
)
def test_wrong_options_are_refused(text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_method(f"sandblaster:{text}").check(SGD(0.1), 1, 10)
    assert caught.value.code == code
    assert "sandblaster" in caught.value.facts + caught.value.fix


def test_it_travels_as_plain_data() -> None:
    given = Sandblaster(iterations=7, form="two-loop", l2=0.5)
    assert msgspec.convert(msgspec.to_builtins(given), AnyMethod) == given


def test_every_solver_can_be_chosen() -> None:
    for solver in SOLVERS:
        steps = Sandblaster(solver=solver).make_solver(Portions(10, 2))()
        assert next(steps)
    assert SOLVERS["cg"] is ConjugateGradients


def test_windows_overlap_and_wrap_around() -> None:
    samples = Sandblaster(fraction=0.4, overlap=0.25)._make_schedule(20)
    windows = [samples(n).ranges for n in range(1, 6)]
    assert windows[0] == ((0, 2), (2, 6), (6, 8))
    assert windows[2] == ((12, 14), (14, 18), (18, 20))
    assert windows[3] == ((18, 20), (0, 4), (4, 6))


@pytest.mark.parametrize("count", range(3, 40))
@pytest.mark.parametrize(("share", "overlap"), [(0.1, 0.25), (0.5, 0.5), (0.9, 0.1)])
def test_windows_have_existing_portions_once(count: int, share: float, overlap: float) -> None:
    samples = Sandblaster(fraction=share, overlap=overlap)._make_schedule(count)
    for n in range(1, 50):
        found, following = samples(n), samples(n + 1)
        looked_at = [portion for first, last in found.ranges for portion in range(first, last)]
        assert len(looked_at) == len(set(looked_at)) <= count
        assert set(looked_at) <= set(range(count))
        assert found.overlap_after
        assert found.ranges[len(found.ranges) - found.overlap_after :] == following.ranges[: following.overlap_before]


def test_torch_compares_with_the_same_tolerances_only_on_its_own_path() -> None:
    values = torch.nn.Parameter(torch.zeros(3))
    given = Sandblaster(torch_path=True, tolerance_grad=1e-5, tolerance_change=1e-6)
    for torch_path, expected in ((True, (1e-5, 1e-6)), (False, (0.0, 0.0))):
        method = msgspec.structs.replace(given, torch_path=torch_path)
        (group,) = method.make_torch_optimizer(values, 10).param_groups
        assert (group["tolerance_grad"], group["tolerance_change"]) == expected
