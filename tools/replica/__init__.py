"""What the worker of a replica is: what it computes on, how it trains by a method, and what it alone has to save.

Nouns: WorkerProcess, ModelPart, ProgressLog, LocalState, BufferFile.
"""
