"""Every class of operators has a name."""

from cutset.partition.operators.sharding.cost_class import CLASSES
from cutset.tools.measured.class_names import CLASS_NAMES


def test_every_class_has_a_name_of_its_own() -> None:
    assert set(CLASS_NAMES) == set(CLASSES)
    assert len(set(CLASS_NAMES.values())) == len(CLASSES)
