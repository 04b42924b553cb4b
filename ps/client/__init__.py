"""The parameter client: a worker's end of the protocol with the parameter-server shards.

`Client` offers put, fetch and push; `Fetcher` installs values; a `SliceSession` per slice and the `Sessions` of all
keep sequence numbers and a replay buffer, so that every push is applied exactly once.
"""
