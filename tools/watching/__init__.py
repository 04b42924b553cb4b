"""A run seen while it lasts, from its folder alone: `cutset watch`, in the terminal or in a browser.

Nouns: MetricsReader, which follows metrics.jsonl; RunView, what is known of the run by it; WatchServer, which shows it.
"""
