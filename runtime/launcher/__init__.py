"""Processes of a run: a `Launcher` starts each `Role` as a process, hands it an `Assignment` and ends all of them.

Roles send heartbeats with their progress; a `LivenessMonitor` decides from those and from exits which role failed
first, or which group of roles was lost and may be started again.
"""
