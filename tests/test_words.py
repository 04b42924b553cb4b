"""One word, one meaning: words that were retired, since the field has better ones, do not come back.

docs/glossary.md has the words that are used.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Sequence

import pytest
from documentation import PAGES
from house import Module, read_modules
from places import ROOT

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once

# Identifiers -> what says the same in the field's terms
RETIRED = {
    r"Recorder": "Lowering, InitRecorder",
    r"\w*(hand_block|by_hand|own_modules|own_gradients)\w*|OwnModules?|hand_blocks?": "leaf modules, custom gradients",
    r"Row|rows_(?:joined|making|moving|along|window|dropout)": "ShardingRule, table_row",
    r"Lines?|Crew|Turns|HandingOut|Leased|InTurn|Standing|Wish|Wishes|Venue": "SliceSession, ReplicaMembership, ...",
    r"Share|Commons|Sharing|Board|Gathering|Keeper|Keeping|Written|Disk|Holdings?|Served": "see names of ps/",
    r"Course|Wanted|First|Setup": "RunConfig, PlanRequest",
    r"Rule|AnyRule|rule_named|\w*_rule_of": "Optimizer",
    r"Beacon|Pulse|Ledger|Account|Gate|Neighbours|Whereabouts|Spot|Peers|Feed": "see names of runtime/",
    r"Flow|Judged|Question|LeftOut|Nets|Draws|Trial|Outcome|Place|Link": "Dataflow, ScoredPlan, PlanningProblem, ...",
    r"hollow|made_up|rehears(?:e|al|ed)|carry_over|polish(?:ed)?|running_ahead|in_words|as_data|print_rows": "verbs",
    r"redo|flying|hurry|anew|_say_again|patience_s|retry_s": "replay_buffer, in_flight, request_flush, timeout_s",
    r"adrift|at_hand|homes|spares|dismiss|renew": "unanchored_views, local_pieces, anchors, reserved_names, stop_roles",
    r"[A-Z][A-Z_]*_(?:MOST|LEAST)|(?:MOST|LEAST)_[A-Z_]+": "MAX_*, MIN_*",
    r"told|said|mine": "the noun",
}
# Words of prose that no reader from the field would understand
PRIVATE_WORDS = r"blocks? by hand|hand blocks?|hollow copy|made[- ]up values|the crew|--rule\b|--blocks\b|--only\b"
NO_PARTICIPLES = re.compile(
    r"_?(?:joined|placed|told|made|taken|given|drawn|written|spelled|planned|matched|found|shown|asked|wanted|kept|sent|put_back|got)"
)


def identifiers(module: Module) -> set[str]:
    """Every identifier of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.fixture(scope="module")
def sources() -> Sequence[Module]:
    return read_modules()


def test_a_retired_name_does_not_come_back(sources: Sequence[Module]) -> None:
    used = {module.path: identifiers(module) for module in sources}
    for retired, instead in RETIRED.items():
        pattern = re.compile(retired)
        found = [(path, name) for path, names in used.items() for name in names if pattern.fullmatch(name)]
        assert found == [], f"use {instead}"


def test_functions_are_verbs(sources: Sequence[Module]) -> None:
    found = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in sources
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
        and NO_PARTICIPLES.fullmatch(node.name)
        and not any(isinstance(d, ast.Name) and "property" in d.id for d in node.decorator_list)
    ]
    assert found == []


def test_one_class_name_has_one_meaning(sources: Sequence[Module]) -> None:
    classes = Counter(
        node.name
        for module in sources
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_the_pages_and_messages_say_nothing_private(sources: Sequence[Module]) -> None:
    texts = {module.path: module.text for module in sources}
    texts |= {str(page): page.read_text() for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]}
    assert [path for path, text in texts.items() if re.search(PRIVATE_WORDS, text, re.IGNORECASE)] == []
