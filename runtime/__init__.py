"""Runs cut models: a launcher starts processes, channels carry their messages, workers run the programs of a cut.

Packages, each importing only those before it: channel, deferred_init, hosts, launcher, worker.
"""
