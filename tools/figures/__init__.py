"""Figures as SVG: each function takes a placement or a result and returns markup.

The cut map has `MapNode`s (operators fused for display) on `Seat`s, and `Crossing`s between them; svg.py writes the
elements, theme.py has the colours.
"""
