"""Workers together.

`Replica`: those of one copy of a cut model in threads of this process, for `cutset.replica` and for tests.
`SizedWorkers`: those of one machine for batches of several sizes.
"""
