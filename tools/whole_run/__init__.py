"""The plan of a whole run of a task: what to do with the machines that there are.

`plan_task_run` returns a `PlannedRun`; `find_exchange` says what a method exchanges.
"""
