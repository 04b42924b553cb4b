"""Follows the roles of a run: a `Launcher` has `Host`s start them, tells them of each other, and ends all of them.

Roles send heartbeats with their progress; a `LivenessMonitor` decides from those and from exits which role failed
first, or which group of roles was lost and may be started again.
"""
