"""The command line: each command reads its options, then loads, captures, plans, configures, runs and reports.

Options of a task, a plan or a run are made from the fields of `RunConfig` (config_options.py).
"""
