"""What a run was like: its results table, learning curve and staleness, and where the time of its steps went.

Nouns: row (of the results table), RecordedSpans and MeasuredStep (steps that workers recorded), Explanation (which
machine or link was waited for), server statistics (staleness, skew, waiting). Everything is plain data.
"""
