"""The bundled tasks: factories such as `mnist()` that return a `Task`, each model in a module of its own.

Their arguments may come from the command line, so they are checked (check_sizes.py).
"""
