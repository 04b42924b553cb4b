"""The options of a training run, each declared once.

Nouns: `RunConfig` (all options and their values), `Option` (the help, group, flag and check of one), config.json (the
record of a `RunConfig` in the run folder).
"""
