"""Executes a cut model: programs, channels, workers, and the launcher. The only folder that imports zmq."""
