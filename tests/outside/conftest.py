"""Nothing is downloaded: weights are random."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
