"""The options of commands, made from the fields of `RunConfig`, and help pages that show them in titled groups."""

from collections.abc import Callable
from dataclasses import Field
from typing import Any, TypeVar

import click

from ...errors import UsageError
from ..config.option import Option, first_type, options_of
from ..config.run_config import PLAN, TASK, RunConfig
from ..path_option import PathOption
from ..task.load_task import TaskSpec
from ..task.plan_request import PlanRequest

F = TypeVar("F", bound=Callable[..., Any])

OTHER = "Other"
TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "Sequence": str, "Path": PathOption()}


class GroupedOption(click.Option):
    """An option that the help of its command lists under a title."""

    def __init__(self, *arguments: Any, group: str = OTHER, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help lists its options under the titles of their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, those without a group last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in sorted(self.get_params(ctx), key=lambda one: getattr(one, "group", OTHER) == OTHER):
            record = one.get_help_record(ctx) if isinstance(one, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(one, "group", OTHER), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def options_in(*groups: str) -> list[str]:
    """Return the names of the options of these groups."""
    return [one.name for one, declared in options_of(RunConfig) if declared.group in groups]


TASK_OPTIONS = options_in(TASK)
PLAN_OPTIONS = [name for name in options_in(PLAN) if name != "placement"]
ALL_OPTIONS = [one.name for one, _ in options_of(RunConfig)]


def config_options(*names: str, defaults: dict[str, str] | None = None) -> Callable[[F], F]:
    """Return a decorator that gives a command these options of `RunConfig`, as keyword arguments by field name.

    defaults: by field name, the default to show for an option where it is not that of `cutset train`.
    """
    wanted = [(one, declared) for one, declared in options_of(RunConfig) if one.name in names]

    def decorate(command: F) -> F:
        for one, declared in reversed(wanted):  # a decorator puts its option before those that it finds
            command = _make_option(one, declared, (defaults or {}).get(one.name))(command)
        return command

    return decorate


def _make_option(one: "Field[Any]", declared: Option, shown_default: str | None) -> Callable[[F], F]:
    kind = first_type(one)
    settings: dict[str, Any] = {"help": _describe(one, declared, shown_default), "group": declared.group}
    if kind == "bool":
        flag = f"{declared.flag}/--no-{declared.flag.removeprefix('--')}"
        return click.option(flag, one.name, default=one.default, cls=GroupedOption, **settings)
    metavar = declared.metavar or (f"[{'|'.join(declared.choices)}]" if declared.choices else None)
    settings |= {"type": TYPES[kind], "metavar": metavar, "multiple": kind == "Sequence", "default": one.default}
    return click.option(declared.flag, one.name, callback=_checker(declared), cls=GroupedOption, **settings)


def _describe(one: "Field[Any]", declared: Option, shown_default: str | None) -> str:
    """Return the help with the default, unless the option is off or empty by default."""
    default = shown_default or declared.shown_default or ("" if one.default in (None, (), "") else str(one.default))
    if isinstance(one.default, bool):
        default = "on" if one.default else "off"
    return f"{declared.help}  [default: {default}]" if default else declared.help


def _checker(declared: Option) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that checks a value as the field does, with the same error."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if declared.check is not None and value is not None:
            declared.check(declared.flag, value)
        return value

    return callback


def read_task_spec(task: str, options: dict[str, Any]) -> TaskSpec:
    """Return the task that the options of a command name."""
    names = {"data", "inputs", "batch", "leaf_modules", "trust_trace"} & options.keys()
    return TaskSpec(task, **{name: options[name] for name in names}, autocast=options.get("autocast") or "")


def read_plan_request(options: dict[str, Any]) -> PlanRequest:
    """Return the plan that the options of a command request."""
    return PlanRequest(**{name: options[name] for name in (*PLAN_OPTIONS, "seed")})


def refuse_both(first: str, second: str) -> UsageError:
    """Return the error of two options that exclude each other."""
    return UsageError("E228", f"{first} has no effect with {second}", fix=f"leave {first} out")
