"""What trackers are fed with: metrics.jsonl of the run folder, and TensorBoard's events.

Nouns: MetricsFile, EventFiles; Listeners, which are several as one.
"""
