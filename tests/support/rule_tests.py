"""`RuleTests`: what is tested of every module of sharding rules, by calls of the operators that it has rules for.

Its assertions bring their own messages: pytest explains only those of test files, and of modules that conftest names.
"""

from collections.abc import Sequence
from types import ModuleType

import pytest
from rule_calls import (
    Calls,
    Given,
    assert_boxes_are_the_whole,
    assert_has_no_written_rule,
    rules_called,
    rules_of,
    uncuttable,
)


class RuleTests:
    """The tests of one module of rules; a subclass named `Test...` collects them.

    rules: the module; calls: of all its rules but `uncalled`, each of which can be cut.
    """

    rules: ModuleType
    calls: Calls
    uncalled: frozenset[str] = frozenset()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Hand each name of `calls`, plain and with finer axes, to the tests that take them.

        Decorators cannot do this: they are evaluated here, where the calls of a subclass are not known.
        """
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.calls)
            metafunc.parametrize("finer", [False, True], ids=["", "finer"])

    def test_boxes_together_are_the_whole(self, name: str, finer: bool) -> None:
        assert_boxes_are_the_whole(self.calls[name], finer=finer)

    def test_every_rule_has_a_call(self) -> None:
        amiss = rules_of(self.rules) ^ (rules_called(self.calls) | self.uncalled)
        assert amiss == set(), f"rules without a call, or called but of another module: {sorted(amiss)}"

    def test_every_call_can_be_cut(self) -> None:
        stuck = uncuttable(self.calls)
        assert stuck == set(), f"calls that cannot be cut: {sorted(stuck)}"


class RuleAndWholeCallTests(RuleTests):
    """And that calls which no rule describes stay whole, or have one that is found by running them.

    whole_calls: such calls, or `pytest.param`s of them where more than the operator's name is to be told.
    """

    whole_calls: Sequence[object]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Hand each of `whole_calls` to the test that takes it, and the others what they take."""
        super().pytest_generate_tests(metafunc)
        if "whole_call" in metafunc.fixturenames:
            metafunc.parametrize("whole_call", self.whole_calls, ids=lambda case: case.target)

    def test_a_call_that_no_rule_describes_is_found_or_stays_whole(self, whole_call: Given) -> None:
        assert_has_no_written_rule(whole_call)
