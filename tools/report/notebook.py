"""`RunResult`: the result of a run as Python has it: a dict, which a notebook shows as the report."""

from collections.abc import Mapping
from html import escape
from typing import Any

from ...partition.placement.placement_file import Placement

_FRAME = '<iframe srcdoc="{}" sandbox="allow-scripts" style="width:100%;height:40em;border:0" title="cutset"></iframe>'


class RunResult(dict[str, Any]):
    """What result.json has, by name. placement: the cut that it ran with, if it had one."""

    def __init__(self, values: Mapping[str, Any], placement: Placement | None = None) -> None:
        super().__init__(values)
        self._placement = placement

    def _repr_html_(self) -> str:
        """Return the report, in a frame of its own, so that its styles are not those of the notebook."""
        from .pages import render_run_page  # which takes a while to import, and few results are shown in a notebook

        return _FRAME.format(escape(render_run_page(self._placement, self)))
