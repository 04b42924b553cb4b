"""`Group`: parameters that have other options of the optimizer than the rest, or are not trained, by patterns."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UsageError

if TYPE_CHECKING:
    from ...ps.optimizers.rates import RatedOptimizer

FROZEN, LR_SCALE = "frozen", "lr_scale"
_DIMENSIONS = re.compile(r"dims<([1-9])")
_FORM = "'*.bias,dims<2:weight_decay=0'"
MAX_GROUPS = 100


class Group:
    """The parameters that a pattern matches, and options of the optimizer for them.

    patterns: globs over the names that the model's state_dict has ("*.bias", "transformer.wte.*"), or "dims<2" for
    those with fewer than two dimensions, as biases and norms. frozen: they are not trained. lr_scale: times the
    learning rate of the run. options: of the optimizer, as weight_decay=0.0 or lr=0.001. Of several groups that match a
    parameter the first counts.
    """

    def __init__(self, *patterns: str, frozen: bool = False, lr_scale: float = 1.0, **options: Any) -> None:
        wrong = [pattern for pattern in patterns if not pattern or set(pattern) & set(":,") or pattern.isspace()]
        if not patterns or wrong:
            facts = f"a group of parameters by the patterns {list(patterns)}"
            raise UsageError("E237", facts, fix=f"name some, as in --group {_FORM}")
        if frozen and (options or lr_scale != 1.0):
            facts = f"the group {patterns[0]} is frozen and has other options, which nothing would use"
            raise UsageError("E237", facts, fix=f"--group {patterns[0]}:frozen=true")
        if not lr_scale > 0:
            fix = f"--group {patterns[0]}:frozen=true for a rate of 0"
            raise UsageError("E237", f"lr_scale of the group {patterns[0]} is {lr_scale!r}, not above 0", fix=fix)
        if lr_scale != 1.0 and "lr" in options:
            facts = (
                f"the group {patterns[0]} has lr={options['lr']} and lr_scale={lr_scale:g}, which scales no such rate"
            )
            raise UsageError("E237", facts, fix=f"--group {patterns[0]}:lr={options['lr']}, or lr_scale alone")
        self.patterns, self.frozen, self.lr_scale, self.options = patterns, frozen, lr_scale, options

    @classmethod
    def parse(cls, text: str) -> "Group":
        """Return the group of a text, "*.bias,dims<2:weight_decay=0". UsageError where it is none."""
        patterns, colon, rest = text.partition(":")
        pairs = [part.partition("=") for part in filter(None, rest.split(","))]
        if not colon or not pairs or not all(name and value for name, _, value in pairs):
            raise UsageError("E237", f"{text!r} is no group of parameters", fix=f"--group {_FORM}")
        options: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
        frozen = options.pop(FROZEN, "false")
        if frozen not in ("true", "false"):
            raise UsageError("E237", f"frozen={frozen} in {text!r}", fix="frozen=true")
        scale = options.pop(LR_SCALE, "1")
        try:
            number = float(scale)
        except ValueError as error:
            raise UsageError("E237", f"lr_scale={scale} in {text!r} is no number", fix="lr_scale=0.1") from error
        split = [pattern.strip() for pattern in patterns.split(",")]
        return cls(*split, frozen=frozen == "true", lr_scale=number, **options)

    def matches(self, names: Iterable[str], dimensions: int) -> bool:
        """Return whether a parameter belongs to it. names: all that it has, as tied ones have several."""
        return any(_matches(pattern, name, dimensions) for pattern in self.patterns for name in names)

    def change(self, optimizer: "RatedOptimizer") -> "RatedOptimizer":
        """Return the optimizer with its options. UsageError where it has no such option, or no such value."""
        import msgspec

        from ...ps.optimizers.optimizer import Optimizer
        from ...ps.optimizers.rates import Scaled, Scheduled

        if isinstance(optimizer, Scheduled):
            inner = self.change(optimizer.inner)
            assert not isinstance(inner, Scheduled)
            return Scheduled(inner, optimizer.schedule)
        if isinstance(optimizer, Scaled):
            inner = self.change(optimizer.inner)
            assert not isinstance(inner, Scaled | Scheduled)
            return Scaled(inner)
        if type(optimizer).on_fetch is not Optimizer.on_fetch:
            facts = f"optimizer {optimizer.name} remembers what each replica has fetched of all parameters alike"
            raise UsageError("E237", f"{facts}; it has no groups", fix="another --optimizer, or leave --group out")
        fields = {field.name: field.type for field in msgspec.structs.fields(optimizer)}
        unknown = [name for name in self.options if name not in fields]
        if unknown:
            there = ", ".join([*fields, LR_SCALE, FROZEN])
            facts = f"optimizer {optimizer.name} has no option {unknown[0]!r} for the group {self.patterns[0]}"
            raise UsageError("E254", f"{facts}; there are {there}", fix=f"--group {self.patterns[0]}:lr_scale=0.1")
        try:
            values = {n: msgspec.convert(value, type=fields[n], strict=False) for n, value in self.options.items()}
        except msgspec.ValidationError as error:
            facts = f"the group {self.patterns[0]} of optimizer {optimizer.name}: {error}"
            raise UsageError("E254", facts, fix=f"--group {_FORM}") from error
        changed = {"lr": optimizer.lr * self.lr_scale, **values}
        return msgspec.structs.replace(optimizer, **changed)

    def __str__(self) -> str:
        options = {**self.options, **({FROZEN: "true"} if self.frozen else {})}
        if self.lr_scale != 1.0 or not options:
            options[LR_SCALE] = self.lr_scale
        return ",".join(self.patterns) + ":" + ",".join(f"{name}={_to_text(value)}" for name, value in options.items())

    def __repr__(self) -> str:
        return f"Group({self})"


def assign_groups(
    groups: Sequence[Group], shapes: Mapping[str, Sequence[int]], tied: Mapping[str, str]
) -> dict[str, int]:
    """Return by name the number of the group of each parameter, that of the rest being `len(groups)`.

    shapes: of all parameters, by the name that counts. tied: from other names that parameters have to that one.
    UsageError for a pattern that matches nothing, and a group all of whose parameters are of groups before it.
    """
    aliases: dict[str, list[str]] = {name: [name] for name in shapes}
    for other, name in tied.items():
        if name in aliases and other != name:
            aliases[name].append(other)
    for group in groups:
        for pattern in group.patterns:
            if not any(_matches(pattern, n, len(shapes[name])) for name, all_ in aliases.items() for n in all_):
                near = difflib.get_close_matches(
                    pattern, [n for all_ in aliases.values() for n in all_], n=3, cutoff=0.3
                )
                there = ", ".join(near or [*shapes][:3])
                facts = f"--group {group}: {pattern!r} matches no parameter; there are {there}"
                raise UsageError("E237", facts, fix=f"--group '{near[0] if near else '*.bias'}:...'")
    numbers = {
        name: next((n for n, group in enumerate(groups) if group.matches(all_, len(shapes[name]))), len(groups))
        for name, all_ in aliases.items()
    }
    for number, group in enumerate(groups):
        if number not in numbers.values():
            facts = f"--group {group}: all that it matches is of the groups before it"
            raise UsageError("E237", facts, fix="put it before these, or leave it out")
    return numbers


def _matches(pattern: str, name: str, dimensions: int) -> bool:
    limit = _DIMENSIONS.fullmatch(pattern)
    return dimensions < int(limit[1]) if limit else fnmatch.fnmatchcase(name, pattern)


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
