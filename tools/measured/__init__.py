"""What is known of this machine from measuring it: kept in the user's cache folder, read by whatever plans for it.

A `SavedProbe` has the constants of a worker's process here, and of operators that were measured, for one `MachineKey`:
a machine, its versions and a number of threads. `tools/probe` measures them. `OtherWork` is what else ran on it.
"""
