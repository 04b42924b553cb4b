"""The card of the cut map: the map for screens and for phones, with search and zoom, and what is folded unfolded."""

from functools import partial

from ...partition.placement.placement_file import Placement
from ..figures.cut_map import has_repeats, render_cut_map
from .html import render_card, render_figures, render_scroll

_TOOLS = (
    '<div class="tools"><label>Find an operator <input type="search" autocomplete="off" spellcheck="false"></label>'
    '<output></output><span><button type="button" data-zoom="0.8" aria-label="Zoom out">−</button>'
    '<button type="button" data-zoom="1.25" aria-label="Zoom in">+</button>'
    '<button type="button" data-zoom="0" aria-label="Size as at first">1:1</button></span></div>'
)


def render_cut_map_card(placement: Placement, lead: str, more: str = "") -> str:
    """Render the card. more: markup below the map."""
    figures = render_figures(partial(render_cut_map, placement, fold=True))
    whole = ""
    if has_repeats(placement):
        figure = render_scroll(render_cut_map(placement, standalone=False, name="cut-whole"))
        summary = f"Unfolded: all {len(placement.ops)} operators"
        whole = f'<details class="unfold"><summary>{summary}</summary>{figure}</details>'
    return render_card("Cut map", lead, _TOOLS + figures + whole + more)
