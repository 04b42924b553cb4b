"""cutset from Python: what a script or a notebook has that the commands do not.

Nouns: Trainer, Callback (hears of a run), CallbackThread (calls the callbacks of a run).
"""
