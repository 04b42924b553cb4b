"""From a model to a placement: capture, axes, blocks, cut, simulation. No I/O beyond its own files, no clock."""
