"""cutset cuts a PyTorch model over the machines you have and trains it without a fast network."""

__version__ = "0.1.0"
