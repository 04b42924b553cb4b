"""Values of options that several modules use. This module imports nothing."""

DEFAULT_OPTIMIZER = "adagrad"
STOP, RETRY_SCALED = "stop", "retry-scaled"  # what a run may do when it diverges
