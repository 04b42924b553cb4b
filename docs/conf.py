"""How Sphinx makes the site of this documentation: `make docs` writes it to build/docs.

The pages are Markdown that a code host shows as well, so links between them are relative paths and no directive stands
in them. The menu is made of docs/index.md: its headings, and the lists of links below each. A list in another page of
the name README.md is the menu below that page.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath

from sphinx.application import Sphinx

project = "cutset"
root_doc = "docs/index"
include_patterns = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
smartquotes = False  # which would make one dash of the two of an option
html_theme = "furo"
pygments_dark_style = "a11y-dark"
html_title = "cutset"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_extra_path = ["site/index.html"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

SECTION = re.compile(r"^#{1,2} (?P<title>.+)\n(?P<text>(?:(?!#).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<path>[\w./-]+)\.md\)", re.MULTILINE)


def make_menu(page: str, text: str) -> Iterator[str]:
    """Yield a hidden table of contents for each section of a page that lists other pages."""
    folder = PurePosixPath(page).parent
    for section in SECTION.finditer(text):
        entries = [
            f"{one['title'].replace('`', '')} </{normpath(folder / one['path'])}>"
            for one in ENTRY.finditer(section["text"])
        ]
        if entries:
            caption = f":caption: {section['title']}\n" if page == root_doc else ""
            yield "\n".join(["", "```{toctree}", f":hidden:\n{caption}", *entries, "```", ""])


def add_menu(_: Sphinx, page: str, text: list[str]) -> None:
    """Add the menu to the text of a page that has one."""
    if page == root_doc or (page.endswith("/README") and page != "README"):
        text[0] += "".join(make_menu(page, text[0]))


def setup(app: Sphinx) -> None:
    """Have Sphinx call what makes the menus."""
    app.connect("source-read", add_menu)
