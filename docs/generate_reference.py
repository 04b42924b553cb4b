"""Writes the reference: docs/reference/*.md and the lists in docs/methods.md, from docstrings and declared options.

`make docs` runs it. tests/docs/test_reference.py compares what it would write with what stands there. What it writes is
plain Markdown, so that a code host shows the same as the site.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import cutset
from cutset.ps.methods.registry import METHODS
from cutset.ps.optimizers.registry import OPTIMIZERS
from cutset.ps.optimizers.schedule import SCHEDULES
from cutset.ps.slices.compression import COMPRESSIONS
from cutset.tools.commands.cli import COMMANDS as COMMANDS_BY_PURPOSE
from cutset.tools.commands.cli import cli
from cutset.tools.commands.methods_command import WHEN, list_options
from cutset.tools.config.option import Option, first_type, options_of
from cutset.tools.config.run_config import RunConfig

DOCS = Path(__file__).resolve().parent
COMMANDS, OPTIONS, PYTHON = (DOCS / "reference" / name for name in ("commands.md", "options.md", "python.md"))
METHODS_PAGE = DOCS / "methods.md"
KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    "methods": METHODS,
    "optimizers": OPTIMIZERS,
    "schedules": SCHEDULES,
    "compressions": COMPRESSIONS,
}
LIST = re.compile(r"<!-- list: (?P<kind>\w+) -->\n.*?<!-- end -->", re.DOTALL)
MADE = "This page is made from the sources by `make docs`."

# What `cutset` has, in the order of the page; methods, optimizers and schedules are in docs/methods.md.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "Training": ("train", "Trainer", "Callback", "Group", "CutsetError"),
    "Tasks and data": ("Task", "Data", "Parts", "PadTo", "Buckets", "Perplexity", "LocallyConnected2d"),
    "Plans and cut models": ("plan", "load_placement", "Placement", "replica", "Replica"),
    "Your own loop": ("connect", "ScriptRun"),
    "Checkpoints": ("load_checkpoint",),
    "Rates": ("Scaled", "Scheduled", "TabulatedSchedule"),
}
WITH_METHODS = {"Trainer", "Callback", "Data", "Placement", "Replica", "ScriptRun", "TabulatedSchedule"}


def render_pages() -> dict[Path, str]:
    """Return every page of the reference by its file."""

    def fill(match: re.Match[str]) -> str:
        entries = "\n\n".join(_describe_kind(name, one) for name, one in sorted(KINDS[match["kind"]].items()))
        return f"<!-- list: {match['kind']} -->\n\n{entries}\n\n<!-- end -->"

    return {
        COMMANDS: render_commands(),
        OPTIONS: render_options(),
        PYTHON: render_python(),
        METHODS_PAGE: LIST.sub(fill, METHODS_PAGE.read_text(encoding="utf-8")),
    }


# Text -----------------------------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Return plain text as Markdown that shows it as it is; what stands between backticks is code already."""
    parts = re.split(r"(`[^`]*`)", text)
    marks = re.compile(r"[\\*<]|(?<!\w)_|_(?!\w)")
    return "".join(part if part.startswith("`") else marks.sub(r"\\\g<0>", part) for part in parts)


def split_fields(text: str, names: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return what a paragraph of a docstring begins with, and its "name, name: description" parts."""
    name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    starts = list(re.finditer(rf"(?:^|(?<=[.;:] ))(?P<names>(?:{name})(?:, (?:{name}))*): ", text)) if name else []
    if not starts:
        return text, []
    ends = [*(one.start() for one in starts[1:]), len(text)]
    found = [
        (one["names"], text[one.end() : end].strip().removesuffix(";")) for one, end in zip(starts, ends, strict=True)
    ]
    return text[: starts[0].start()].strip(), found


def render_docstring(thing: Any, names: Iterable[str], leave_out: Iterable[str] = ()) -> str:
    """Return a docstring as Markdown: paragraphs, and lists of what it says of each of these names but some."""
    parts = []
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        title = lines.pop(0) if lines[0] in ("Args:", "Attributes:") else ""
        head, described = split_fields(" ".join(lines), names)
        items = [f"- {_code(names)}: {escape(about)}" for names, about in described if names not in leave_out]
        if head.startswith(WHEN):
            parts.append(f"**When:** {escape(head.removeprefix(WHEN))}")
        elif head or title == "Attributes:":
            parts.append(escape(head or title))
        parts += ["\n".join(items)] if items else []
    return "\n\n".join(parts)


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


# Methods, optimizers, schedules, compressions ------------------------------------------------------------------------


def _describe_kind(name: str, kind: type[Any]) -> str:
    """Return the section of a method or the like: what it is, when it pays, its options with their defaults."""
    options = list_options(kind)
    given = ",".join(f"{name}={default}" for name, default in options.items())
    text = f"`{name}{':' if given else ''}{given}`"
    if getattr(cutset, kind.__name__, None) is kind:
        text += f", in Python `cutset.{kind.__name__}`"
    return f"### {name}\n\n{text}\n\n{render_docstring(kind, list(options))}"


# Commands -------------------------------------------------------------------------------------------------------------


def render_commands() -> str:
    """Return docs/reference/commands.md: every command with its help and its options."""
    top = click.Context(cli, info_name="cutset", **cli.context_settings)  # else commands would remember no -h
    sections = [
        "# Commands\n\nWhat `cutset COMMAND --help` says, of all commands. Conventions, exit codes and the run folder: "
        f"[The command line](../guide/command_line.md). {MADE}"
    ]
    for context in _walk_commands(top):
        level = "##" if context.parent is top else "###"
        sections.append(f"{level} {context.command_path}\n\n{_describe_command(context)}")
    return "\n\n".join(sections) + "\n"


def _walk_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command below a group, in the order of the group's help."""
    assert isinstance(context.command, click.Group)
    ordered = [one for commands in COMMANDS_BY_PURPOSE.values() for one in commands]
    for command in ordered if context.command is cli else context.command.commands.values():
        below = click.Context(command, info_name=command.name, parent=context)
        yield below
        if isinstance(command, click.Group):
            yield from _walk_commands(below)


def _describe_command(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"```text\n{usage}\n```", *map(_render_help, _paragraphs(command.help)), _list_parameters(context)]
    return "\n\n".join(part for part in [*parts, *map(_render_help, _paragraphs(command.epilog))] if part)


def _paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").split("\n\n")


def _render_help(paragraph: str) -> str:
    """Return a paragraph of a help text as Markdown; one that click does not wrap is shown as it stands."""
    if not paragraph.startswith("\b\n"):
        return escape(" ".join(paragraph.split()))
    title, *lines = paragraph.removeprefix("\b\n").splitlines()
    return f"{escape(title)}\n\n```text\n{inspect.cleandoc(chr(10).join(['', *lines]))}\n```"


def _list_parameters(context: click.Context) -> str:
    """Return the lists of a command's options, each group with its title."""
    groups: dict[str, list[str]] = {}
    for one in context.command.get_params(context):
        record = one.get_help_record(context) if isinstance(one, click.Option) else None
        if record is not None and "--help" not in one.opts:
            flag, about = record
            groups.setdefault(getattr(one, "group", "Other"), []).append(f"- `{flag}`: {_with_default(about)}")
    titled = len(groups) > 1
    return "\n\n".join((f"**{title}**\n\n" if titled else "") + "\n".join(rows) for title, rows in groups.items())


def _with_default(about: str) -> str:
    """Return the help of an option; what click adds in brackets, a default or a range, stands in parentheses."""
    text, extra = re.fullmatch(r"(.*?)(?:  \[(.*)\])?", " ".join(about.splitlines())).groups()  # type: ignore[union-attr]
    return escape(text) + (f" ({escape(extra)})" if extra else "")


# Options --------------------------------------------------------------------------------------------------------------


def render_options() -> str:
    """Return docs/reference/options.md: the fields of `RunConfig` by group."""
    groups: dict[str, list[str]] = {}
    for one, declared in options_of(RunConfig):
        groups.setdefault(declared.group, []).append(_describe_option(one.name, one, declared))
    parts = [
        "# Options of a run\n\nEach is declared once, and is the same as an option of `cutset train`, as an argument "
        "of `cutset.train` and `cutset.Trainer`, and as a key of `config.json` in the run folder. The name is "
        f"Python's, the flag is that of the command. {MADE}"
    ]
    parts += [f"## {title}\n\n" + "\n".join(rows) for title, rows in groups.items()]
    return "\n\n".join(parts) + "\n"


def _describe_option(name: str, one: Any, declared: Option) -> str:
    flag = declared.flag
    if first_type(one) == "bool":
        flag += f", --no-{flag.removeprefix('--')}"
    elif declared.metavar or declared.choices:
        flag += f" {declared.metavar or '|'.join(declared.choices)}"
    default = declared.shown_default or ("" if one.default in (None, (), "") else f"`{one.default}`")
    return f"- `{name}` (`{flag}`): {escape(declared.help)}" + (f" Default: {default}." if default else "")


# Python ---------------------------------------------------------------------------------------------------------------


def render_python() -> str:
    """Return docs/reference/python.md: everything public that no other page lists."""
    listed = {name for names in TOPICS.values() for name in names}
    kinds = {kind.__name__ for kinds in KINDS.values() for kind in kinds.values()}
    if missing := set(cutset.__all__) ^ (listed | kinds & set(cutset.__all__)):
        raise ValueError(f"TOPICS of {Path(__file__).name} differs from cutset.__all__ in {sorted(missing)}")
    parts = [
        "# Python\n\nEverything that `import cutset` gives. Methods, optimizers, schedules and compressions, as text "
        f"or as objects of the same options, are in [Methods](../methods.md). {MADE}"
    ]
    for title, names in TOPICS.items():
        parts += [f"## {title}", *(_describe_public(name) for name in names)]
    return "\n\n".join(parts) + "\n"


def _describe_public(name: str) -> str:
    thing = getattr(cutset, name)
    options = {one.name for one, _ in options_of(RunConfig)} if name in ("train", "Trainer") else set()
    parts = [f"### {name}", f"```text\n{format_call(f'cutset.{name}', thing, options)}\n```"]
    parts.append(render_docstring(thing, _names_of(thing, options), leave_out=options))
    if options:
        parts.append("The options are those of [a run](options.md).")
    return "\n\n".join([*parts, *_describe_members(name, thing)])


def _names_of(thing: Any, options: Iterable[str]) -> list[str]:
    """Return the names that a docstring may describe: parameters, fields and attributes."""
    stated = re.search(r"^Attributes:\n(?P<lines>(?:    .*\n?)+)", inspect.getdoc(thing) or "", re.MULTILINE)
    attributes = re.findall(r"^    (\w+(?:, \w+)*):", stated["lines"], re.MULTILINE) if stated else []
    names = [name for joined in attributes for name in joined.split(", ")]
    return [*inspect.signature(thing).parameters, *names, *options, "options", "code", "facts", "fix"]


def format_call(name: str, thing: Any, options: Iterable[str] = ()) -> str:
    """Return how a function or a class is called: its parameters with their defaults, and what it returns."""
    signature = inspect.signature(thing)
    left_out = set(options)
    words: list[str] = []
    for one in signature.parameters.values():
        if one.name == "self" or one.name in left_out:
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in words and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        words.append(f"{stars}{one.name}" + ("" if one.default is one.empty else f"={_format_default(one.default)}"))
    if left_out:
        words.append("**options")
    returned = signature.return_annotation
    result = "" if inspect.isclass(thing) or returned in (signature.empty, None, "None") else _format_type(returned)
    return f"{name}({', '.join(words)})" + (f" -> {result}" if result else "")


def _format_default(value: Any) -> str:
    text = repr(value).removeprefix("mappingproxy(").removesuffix(")") if isinstance(value, Mapping) else repr(value)
    return "..." if "<" in text or "object at" in text else text


def _format_type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)


def _describe_members(name: str, thing: Any) -> Iterator[str]:
    """Yield the public methods that a class itself defines and describes."""
    for member, value in vars(thing).items() if name in WITH_METHODS else ():
        function: Callable[..., Any] | None = getattr(value, "__func__", value)
        if isinstance(value, property):
            function = value.fget
        if member.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        if isinstance(value, property):
            call = f"{name}.{member}"
        else:
            call = format_call(f"{name}.{member}", function).replace("(cls, ", "(").replace("(cls)", "()")
        yield f"#### {name}.{member}\n\n```text\n{call}\n```\n\n" + render_docstring(
            function, inspect.signature(function).parameters
        )


def main() -> None:
    """Write the pages that differ."""
    for path, text in render_pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
