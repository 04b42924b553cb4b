"""What Python runs at its start where PYTHONPATH names this folder: frameworks can then import torchvision."""

import torchvision_operators  # noqa: F401
