"""A run over hosts: which host each role runs on, and the files between the hosts and the run folder."""
