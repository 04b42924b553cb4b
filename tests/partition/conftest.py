"""What tests of the partitioner share."""

from collections.abc import Sequence

import pytest

from cutset.partition.capture import export
from cutset.partition.draft.draft import Draft
from cutset.partition.repeats.layer_chains import LayerChain


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many layers were put in the place of the middle of each chain so far."""
    counts = list[int]()

    def grow(draft: Draft, chain: LayerChain, states: Sequence[str]) -> Draft:
        result = grow_draft(draft, chain, states)
        counts.append(len(chain.skipped))
        return result

    grow_draft = export.grow_draft
    monkeypatch.setattr(export, "grow_draft", grow)
    return counts
