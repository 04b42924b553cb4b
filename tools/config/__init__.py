"""What a training run can be asked for: every option, declared once.

Nouns: `RunConfig` (the options and their values), `Option` (one: its default, help and check), config.json (their
record in the run folder).
"""
