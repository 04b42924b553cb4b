"""The reference says of the code what the code says: `make docs` has nothing left to write."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT

import cutset
from cutset.ps.methods.registry import METHODS
from cutset.tools.commands.methods_command import when_it_pays


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generate: ModuleType) -> dict[Path, str]:
    rendered: dict[Path, str] = generate.render_pages()
    return rendered


def test_the_pages_are_what_the_generator_writes(pages: dict[Path, str]) -> None:
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make docs`"


def test_everything_public_has_a_heading(pages: dict[Path, str], generate: ModuleType) -> None:
    text = "\n".join(pages[page] for page in (generate.PYTHON, generate.METHODS_PAGE))
    missing = [name for name in cutset.__all__ if f"### {name}\n" not in text and f"`cutset.{name}`" not in text]
    assert missing == []


def test_every_option_of_a_command_is_listed(pages: dict[Path, str], generate: ModuleType) -> None:
    text = pages[generate.COMMANDS]
    assert "## cutset train\n" in text
    assert "### cutset bench plan\n" in text
    assert "- `--replicas INTEGER`: Copies of the model to train. (default: 1)\n" in text


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_says_when_it_pays(method: str) -> None:
    assert when_it_pays(METHODS[method]).endswith(".")


def test_names_of_a_docstring_become_a_list(generate: ModuleType) -> None:
    def buy(count: int, price: int) -> None:
        """Buy horses, *all* of them.

        count: of horses; more is
        better. price: of each, in `coins`; why: is no name.

        When: there is a market.

        Attributes:
            stable: where they go.
        """

    assert generate.render_docstring(buy, ["count", "price", "stable"]) == (
        "Buy horses, \\*all\\* of them.\n\n"
        "- `count`: of horses; more is better.\n- `price`: of each, in `coins`; why: is no name.\n\n"
        "**When:** there is a market.\n\n"
        "Attributes:\n\n- `stable`: where they go."
    )
    assert "price" not in generate.render_docstring(buy, ["count", "price"], leave_out=["price"])


def test_a_call_is_shown_with_its_defaults(generate: ModuleType) -> None:
    def buy(count: int, *more: int, price: float = 1.5, way: object = object()) -> Path:
        return Path()

    assert generate.format_call("buy", buy) == "buy(count, *more, price=1.5, way=...) -> Path"
    assert generate.format_call("buy", buy, ["price", "way"]) == "buy(count, *more, **options) -> Path"
