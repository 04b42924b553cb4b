"""The site of the documentation: Sphinx builds it without a warning, and nothing in it comes from another host."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from documentation import PAGES, read_links
from places import ROOT

INDEX = ROOT / "docs" / "index.md"
ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
}


class LoadedFiles(HTMLParser):
    """Collects what a browser loads by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses in a tag."""
        self.addresses += [value for name, value in attrs if value and name in LOADED.get(tag, ())]


def find_loaded_files(text: str) -> list[str]:
    """The addresses of all that a page loads."""
    parser = LoadedFiles()
    parser.feed(text)
    return parser.addresses


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew."""
    missing = [name for name in ("sphinx", "furo", "myst_parser") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; `make docs` does")
    built, state = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("state")
    command = [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "-c", ROOT / "docs", "-d", state, ROOT, built]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return built


def find_pages(site: Path) -> Iterator[tuple[str, str]]:
    """Yield each page of the site: its path and its text."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        yield page.relative_to(site).as_posix(), page.read_text(encoding="utf-8")


def test_every_page_is_in_a_menu() -> None:
    listed = {path for page in (INDEX, INDEX.parent / "decisions" / "README.md") for path, _ in read_links(page)}
    assert {page for page in PAGES if page not in listed} == {INDEX}


def test_what_a_page_loads_is_found() -> None:
    page = '<link href="a.css"><script src="//x/b.js"></script><a href="https://c"><img alt="" src="https://d/e.png">'
    assert find_loaded_files(page) == ["a.css", "//x/b.js", "https://d/e.png"]
    assert [bool(ELSEWHERE.match(one)) for one in find_loaded_files(page)] == [False, True, True]


@pytest.mark.run
def test_no_page_loads_from_another_host(site: Path) -> None:
    loaded = [(page, one) for page, text in find_pages(site) for one in find_loaded_files(text)]
    assert loaded
    assert [(page, one) for page, one in loaded if ELSEWHERE.match(one)] == []
    styles = {sheet.name: sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css")}
    assert [name for name, text in styles.items() if re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", text)] == []


@pytest.mark.run
def test_what_a_page_loads_is_there(site: Path) -> None:
    loaded = {
        (site / page).parent / one.partition("?")[0]
        for page, text in find_pages(site)
        for one in find_loaded_files(text)
    }
    loaded = {path for path in loaded if "data:" not in str(path) and not str(path).endswith("#")}
    assert [path for path in sorted(loaded) if not path.exists()] == []


@pytest.mark.run
def test_the_search_knows_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert [page for page in PAGES if f'"{page.relative_to(ROOT).with_suffix("").as_posix()}"' not in index] == []


@pytest.mark.run
def test_the_site_begins_with_the_menu(site: Path) -> None:
    target = re.search(r'url=([^"]+)"', (site / "index.html").read_text(encoding="utf-8"))
    assert target
    assert "When not to use it" in (site / target[1]).read_text(encoding="utf-8")
