"""The documentation says of the code what the code says: `make docs` has nothing left to write."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import ROOT

from cutset.error_codes import MEANINGS

SOURCE = '''
"""Example."""

WAY_OUT = "sell it"


def buy(count, price, *, code="E209"):
    fix = f"buy {count - 1}"
    if price:
        raise UsageError(code, f"{count} horses at {price}", fix=fix)
    facts = "no price"
    raise BadInput("E301", facts, fix=WAY_OUT + " again")


def refuse(code, what, *, fix="wait"):
    return Infeasible(code, f"{what} is too much", fix=fix)


def go(horse):
    if horse.error.code == "E502":
        raise refuse("E401", f"a horse of {len(horse)} legs")
'''


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sites(generate: ModuleType) -> list[Any]:
    found: list[Any] = generate.find_sites()
    return found


def test_every_code_has_a_meaning_and_every_meaning_a_code(generate: ModuleType, sites: list[Any]) -> None:
    codes = {site.code for site in sites}
    assert sorted(codes - MEANINGS.keys()) == []
    assert sorted(MEANINGS.keys() - codes) == []
    assert generate.read_meanings() == MEANINGS


def test_meanings_are_different_sentences() -> None:
    assert len(set(MEANINGS.values())) == len(MEANINGS)
    assert list(MEANINGS) == sorted(MEANINGS)
    assert all(meaning[0].isupper() and meaning.endswith(".") for meaning in MEANINGS.values())


def test_the_first_digit_of_a_code_is_the_exit_code_of_its_class(generate: ModuleType, sites: list[Any]) -> None:
    classes = generate.read_error_classes()
    wrong = [site for site in sites if int(site.code[1]) != classes[site.error].exit_code]
    assert [(site.code, site.error, site.file) for site in wrong] == []


def test_the_pages_are_what_the_generator_writes(generate: ModuleType) -> None:
    stale = [path for path, text in generate.render_pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs`"


def test_sites_are_found_with_their_texts(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example.py").write_text(SOURCE)
    classes = generate.read_error_classes()
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    modules = [generate.Module(tmp_path / "example.py")]
    monkeypatch.setattr(generate, "read_modules", lambda: modules)
    monkeypatch.setattr(generate, "read_error_classes", lambda: classes)
    monkeypatch.setattr(generate, "read_helpers", generate.read_helpers.__wrapped__)
    assert [(site.code, site.error, site.facts, site.fix) for site in generate.find_sites()] == [
        ("E209", "UsageError", "<count> horses at <price>", "buy <count>"),
        ("E301", "BadInput", "no price", "sell it again"),
        ("E401", "Infeasible", "a horse of <number> legs is too much", "wait"),
    ]


def test_a_table_of_modules_has_first_sentences(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / "stable").mkdir()
    (tmp_path / "stable" / "__init__.py").write_text('"""Not shown."""')
    (tmp_path / "stable" / "horse.py").write_text('"""`Horse`: eats | sleeps, e.g. hay. It\nruns, too."""')
    (tmp_path / "stable" / "cow.py").write_text('"""A cow\nof two lines.\n\nMore."""')
    page = "# Stable\n\n<!-- modules: stable -->\nold\n<!-- end -->\n\nRest\n"
    assert generate.fill_tables(page) == (
        "# Stable\n\n<!-- modules: stable -->\n\n| module | |\n|---|---|\n"
        "| [cow.py](/stable/cow.py) | A cow of two lines. |\n"
        "| [horse.py](/stable/horse.py) | `Horse`: eats \\| sleeps, e.g. hay. |\n"
        "\n<!-- end -->\n\nRest\n"
    )
    assert generate.fill_tables(generate.fill_tables(page)) == generate.fill_tables(page)
