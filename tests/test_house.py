"""The layout holds: sizes, floors, no circles; and the checks find what breaks it."""

import pytest
from house import Module, find_circles, find_floor_faults, find_oversized, read_floors, read_modules

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once


def modules(**texts: str) -> list[Module]:
    """Modules by path, "__" for "/"."""
    return [Module(f"{path.replace('__', '/')}.py", text) for path, text in texts.items()]


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("find", [find_oversized, find_circles, find_floor_faults])
def test_the_sources_are_in_order(find):
    assert sorted(find(read_modules())) == []


def test_every_floor_has_a_package():
    found = {module.path for module in read_modules()}
    places = [place.removesuffix("/*") for place in read_floors()]
    assert [place for place in places if not any(path.startswith(place) for path in found)] == []


def test_a_long_function_a_long_module_and_a_full_folder_are_found():
    body = "    x = 1\n"
    long = modules(ps__a="def f():\n" + body * 60, ps__b="x = 1\n" * 351)
    assert [fault.split(" ")[0] for fault in find_oversized(long)] == ["ps/a.py:1", "ps/b.py"]
    full = [Module(f"ps/m{i}.py", "") for i in range(16)]
    assert list(find_oversized(full)) == ["ps/ has 16 modules; 15 at most"]
    assert list(find_oversized(full[1:])) == []


def test_a_circle_is_found_though_only_a_type_checker_goes_round_it():
    around = modules(
        ps__a="from .b import f", ps__b="if TYPE_CHECKING:\n    from .c import g", ps__c="def h():\n    from . import a"
    )
    assert list(find_circles(around)) == ["a circle of imports: ps/a.py, ps/b.py, ps/c.py"]
    assert list(find_circles(around[:2])) == []


@pytest.mark.parametrize(
    ("path", "text", "faults"),
    [
        ("ps__slices__a", "from ..optimizers.b import f", 0),
        ("ps__slices__a", "from ..server.b import f", 1),
        ("ps__checkpoint__a", "from ..client.b import f", 1),
        ("partition__ir__a", "if TYPE_CHECKING:\n    from ...runtime.worker.b import f", 1),
        ("tools__bench__plan__a", "from ..channel.b import f", 1),
        ("tools__unknown__a", "", 0),
        ("tools__unknown__a", "from ...errors import E", 1),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(path: str, text: str, faults: int):
    others = modules(
        ps__optimizers__b="",
        ps__server__b="",
        ps__client__b="",
        runtime__worker__b="",
        tools__bench__channel__b="",
        api__errors="",
    )
    assert len(list(find_floor_faults([*modules(**{path: text}), *others]))) == faults
