"""`Replica`: the workers of one copy of a cut model, in threads of this process, for `cutset.replica` and for tests."""
