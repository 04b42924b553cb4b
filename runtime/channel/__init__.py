"""Messages between roles: a `Channel` sends a `Message` to a named peer, in order and each once, or raises an error.

`ZmqChannel` does so between processes, with encryption, and through shared memory (`SameHostPeers`) on one host;
`MemoryNetwork` does so between threads, with scripted faults. A `Mailbox` waits for the message that is wanted next.
"""
