"""Where roles run: a `Host` starts the process of each `Role`, a fork of a server, and hands it its `Assignment`.

`LocalHost` is this machine; `RemoteHost` another one, where an `Agent` does the same.
"""
