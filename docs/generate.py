"""Writes what the documentation says of the code: docs/errors.md, and the tables of modules in docs/**/*.md.

`make docs` runs it. tests/test_docs.py compares what it would write with what stands there.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("api", "models", "partition", "runtime", "ps", "tools")
ERRORS = ROOT / "docs" / "errors.md"
MEANINGS_FILE = ROOT / "api" / "error_codes.py"

CODE = re.compile(r"E\d{3}")
TABLE = re.compile(r"<!-- modules: (?P<folder>[\w/]+) -->\n.*?<!-- end -->", re.DOTALL)
MAX_DEPTH = 4  # of names that stand for names

INTRODUCTION = """# Error codes

Every error that a user can understand and fix has a code, the facts, and most have a line that fixes it. The first digit of the code is
the exit code of the command. Exit code 1 is a bug, or an error of the environment. In the messages below, `<name>` stands for a value.

This page is made from the sources by `make docs`.
"""  # noqa: E501 - pages have 140 columns


class ErrorClass(NamedTuple):
    """A class of api/errors.py, or a subclass of one."""

    name: str
    exit_code: int
    about: str


@dataclass(frozen=True, order=True)
class Site:
    """A place in the sources where a code is raised. facts, fix: texts with <name> for values; "" if unknown."""

    code: str
    facts: str
    fix: str
    file: str
    error: str


class Module:
    """The syntax tree of a source file, with the parents of its nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of these kinds around a node, from the inside outwards."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, kinds):
                yield node

    def value_of(self, name: str, at: ast.expr) -> ast.expr | None:
        """Find what a name stands for at a node: an assignment before it, the default of a parameter, a constant."""
        for scope in self.enclosing(at, ast.FunctionDef):
            assert isinstance(scope, ast.FunctionDef)
            before = [one for one in _assignments(scope, name) if one.lineno <= at.lineno]
            if before:
                return _unpack(max(before, key=lambda one: one.lineno), name)
            if name in _parameters(scope):
                return _defaults(scope).get(name)
        constants = [one for one in _assignments(self.tree, name) if one in self.tree.body]
        return _unpack(constants[-1], name) if constants else None


def _assignments(scope: ast.AST, name: str) -> list[ast.Assign]:
    """Return the assignments to a name in a scope, also as part of a tuple."""
    assignments = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    return [
        node
        for node in assignments
        if any(isinstance(one, ast.Name) and one.id == name for target in node.targets for one in ast.walk(target))
    ]


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the defaults of a function's parameters by name."""
    positional = [*function.args.posonlyargs, *function.args.args]
    last = zip(reversed(positional), reversed(function.args.defaults), strict=False)
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {one.arg: value for one, value in (*last, *named) if value is not None}


def _unpack(node: ast.Assign, name: str) -> ast.expr:
    """Return the value that an assignment gives to a name, the right element of a tuple."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        for one, value in zip(target.elts, node.value.elts, strict=False):
            if isinstance(one, ast.Name) and one.id == name:
                return value
    return node.value


@lru_cache
def read_modules() -> list[Module]:
    """Read all source files, except the table of meanings."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [Module(path) for path in files if path != MEANINGS_FILE]


@lru_cache
def read_error_classes() -> Mapping[str, ErrorClass]:
    """Find the classes of errors: `CutsetError` and all that derive from it."""
    definitions = {
        node.name: node for module in read_modules() for node in module.tree.body if isinstance(node, ast.ClassDef)
    }
    classes: dict[str, ErrorClass] = {}
    found = ["CutsetError"]
    while found:
        name = found.pop()
        node = definitions[name]
        codes = [
            one.value.value
            for one in node.body
            if isinstance(one, ast.Assign)
            and ast.unparse(one.targets[0]) == "exit_code"
            and isinstance(one.value, ast.Constant)
        ]
        bases = [ast.unparse(base) for base in node.bases]
        inherited = next((classes[base].exit_code for base in bases if base in classes), 1)
        classes[name] = ErrorClass(name, codes[0] if codes else inherited, first_sentence(ast.get_docstring(node)))
        found += [other for other, one in definitions.items() if name in [ast.unparse(base) for base in one.bases]]
    return classes


class Helper(NamedTuple):
    """A function that makes errors of a code that it is given, as a parameter of this name."""

    module: Module
    node: ast.FunctionDef
    parameter: str


@lru_cache
def read_helpers() -> Mapping[str, list[Helper]]:
    """Find the functions that make errors of a code that they are given, by name."""
    helpers: dict[str, list[Helper]] = {}
    for module in read_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                for parameter in _parameters(node):
                    if _errors_with(module, node, parameter):
                        helpers.setdefault(node.name, []).append(Helper(module, node, parameter))
    return helpers


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _errors_with(module: Module, node: ast.FunctionDef, parameter: str) -> list[ast.Call]:
    """Return the errors in a function whose code is this parameter."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and one.args and _error_class(module, one)]
    return [call for call in calls if parameter in _alternatives(call.args[0])]


def _alternatives(node: ast.expr) -> list[str]:
    """Return the names in `name` or `name or name`."""
    values = node.values if isinstance(node, ast.BoolOp) else [node]
    return [one.id for one in values if isinstance(one, ast.Name)]


def _error_class(module: Module, call: ast.Call) -> str:
    """Return the name of the class of errors that a call makes, or ""."""
    name = _callee(call)
    if name == "__init__" and ast.unparse(call.func).startswith("super()"):
        name = next((one.name for one in module.enclosing(call, ast.ClassDef) if isinstance(one, ast.ClassDef)), "")
    return name if name in read_error_classes() else ""


def _callee(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def find_sites() -> list[Site]:
    """Find every place where a code is raised, or handed to a function that raises it."""
    sites = set()
    aliases: dict[str, str] = {}  # constants that name a code
    for module in read_modules():
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and _is_code(node.value.value):
                aliases[ast.unparse(node.targets[0])] = node.value.value
    for module in read_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and _is_code(node.value):
                sites |= set(_sites_at(module, node, node.value))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in aliases:
                sites |= set(_sites_at(module, node, aliases[node.id]))
    return sorted(sites)


def _is_code(value: object) -> bool:
    return isinstance(value, str) and CODE.fullmatch(value) is not None


def _sites_at(module: Module, node: ast.expr, code: str) -> Iterator[Site]:
    """Yield what a code at a node is raised as; nothing if it is only compared with."""
    parent = module.parents[node]
    if isinstance(parent, ast.arguments):  # the default of a parameter
        function = module.parents[parent]
        assert isinstance(function, ast.FunctionDef)
        for helper in read_helpers().get(function.name, []):
            if helper.node is function:
                yield from _sites_in(helper, code, module, {})
        return
    around = next(module.enclosing(node, ast.Call, ast.Compare), None)
    if not isinstance(around, ast.Call):
        return
    error = _error_class(module, around)
    if error:
        yield _make_site(module, around, code, error, {})
        return
    helpers = read_helpers().get(_callee(around), [])
    for helper in [one for one in helpers if one.module is module] or helpers:
        bound = _bind(helper.node, around)
        given = bound.get(helper.parameter)
        if given is not None and any(one is node for one in ast.walk(given)):
            texts = {name: describe(module, value) for name, value in bound.items()}
            yield from _sites_in(helper, code, module, texts)


def _sites_in(helper: Helper, code: str, module: Module, texts: Mapping[str, str]) -> Iterator[Site]:
    """Yield what a helper raises a code as, called in a module with these texts."""
    for call in _errors_with(helper.module, helper.node, helper.parameter):
        site = _make_site(helper.module, call, code, _error_class(helper.module, call), texts)
        yield replace(site, file=module.path)


def _bind(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a call by the names of the parameters."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] == ["self"]:
        names = names[1:]
    bound = dict(zip(names, call.args, strict=False))
    return bound | {one.arg: one.value for one in call.keywords if one.arg}


def _make_site(module: Module, call: ast.Call, code: str, error: str, texts: Mapping[str, str]) -> Site:
    fix = next((one.value for one in call.keywords if one.arg == "fix"), None)
    facts = call.args[1] if len(call.args) > 1 else None
    return Site(
        code,
        facts=describe(module, facts, texts) if facts else "",
        fix=describe(module, fix, texts) if fix else "",
        file=module.path,
        error=error,
    )


def describe(module: Module, node: ast.expr, texts: Mapping[str, str] = {}, depth: int = 0) -> str:
    """Return a text with <name> in place of every value that is known only at run time.

    texts: what parameters of the enclosing function are.
    """
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(describe(module, one, texts, depth) for one in values)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return texts.get(name, f"<{_label(node.value)}>")
        case ast.FormattedValue(value=value):
            return describe(module, value, texts, depth) if isinstance(value, ast.Constant) else f"<{_label(value)}>"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return describe(module, left, texts, depth) + describe(module, right, texts, depth)
        case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
            return " / ".join(filter(None, (describe(module, part, texts, depth) for part in (one, other))))
        case ast.Name(id=name) if name in texts:
            return texts[name]
        case ast.Name(id=name) if depth < MAX_DEPTH:
            assigned = module.value_of(name, node)
            return f"<{_label(node)}>" if assigned is None else describe(module, assigned, texts, depth + 1)
    return f"<{_label(node)}>"


def _label(node: ast.expr) -> str:
    """Return a name for a value in a message."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Call(func=ast.Name(id="len")):
            return "number"
        case ast.Call(args=[argument, *_]):
            return _label(argument)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return _label(value)
        case ast.BinOp(left=left):
            return _label(left)
        case ast.IfExp(body=body):
            return _label(body)
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value) | ast.Starred(value=value):
            return _label(value)
    return "value"


def render_errors(sites: list[Site], meanings: Mapping[str, str]) -> str:
    """Return docs/errors.md: a section for each exit code, and in it a heading for each code."""
    classes = read_error_classes()
    by_exit: dict[int, list[str]] = {}
    for site in sites:
        codes = by_exit.setdefault(classes[site.error].exit_code, [])
        if site.code not in codes:
            codes.append(site.code)
    parts = [INTRODUCTION]
    for exit_code, codes in sorted(by_exit.items()):
        error = next(one for one in classes.values() if one.exit_code == exit_code)
        parts.append(f"\n## Exit code {exit_code}: `{error.name}`\n\n{error.about}\n")
        for code in sorted(codes):
            rows = [one for one in sites if one.code == code and classes[one.error].exit_code == exit_code]
            parts.append(f"\n### {code}\n\n{meanings[code]}\n\n" + "\n".join(_render_sites(rows)) + "\n")
    return "".join(parts)


def _render_sites(sites: list[Site]) -> Iterator[str]:
    shown = set()
    for site in sites:
        facts = _as_line(site.facts) or "(made where it is raised)"
        line = f"- {facts}" + (f"<br>Fix: {_as_line(site.fix)}" if site.fix else "") + f" — {site.file}"
        if line not in shown:
            shown.add(line)
            yield line


def _as_line(text: str) -> str:
    """Return a text as one line of code in Markdown."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line}`" if line else ""


def module_table(folder: str) -> str:
    """Return a Markdown table of the modules of a folder, each with the first sentence of its docstring."""
    rows = ["| module | |", "|---|---|"]
    for path in sorted((ROOT / folder).glob("*.py")):
        if path.name == "__init__.py":
            continue
        about = first_sentence(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
        rows.append(f"| [{path.name}](/{folder}/{path.name}) | {about.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def first_sentence(docstring: str | None) -> str:
    """Return the first sentence of a docstring as one line."""
    text = " ".join((docstring or "").partition("\n\n")[0].split())
    end = re.search(r"(?<!e\.g)(?<!al)(?<!vs)[.!?](?= [A-Z`\"]|$)", text)
    return text[: end.end()] if end else text


def fill_tables(text: str) -> str:
    """Return a page with its tables of modules as they should be."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- modules: {match['folder']} -->\n\n{module_table(match['folder'])}\n\n<!-- end -->"

    return TABLE.sub(fill, text)


def read_meanings() -> dict[str, str]:
    """Read the table of api/error_codes.py, without importing it."""
    for node in ast.parse(MEANINGS_FILE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MEANINGS" and node.value is not None:
            meanings: dict[str, str] = ast.literal_eval(node.value)
            return meanings
    raise ValueError(f"{MEANINGS_FILE} has no table MEANINGS")


def render_pages() -> dict[Path, str]:
    """Return every page that is made from the code, by its file."""
    pages = {ERRORS: render_errors(find_sites(), read_meanings())}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if TABLE.search(text):
            pages[path] = fill_tables(text)
    return pages


def main() -> None:
    """Write the pages that differ."""
    for path, text in render_pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
