"""Where the tests find the repository, the models that they train, and data that stands beside a checkout."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent
USER_MODELS = SUPPORT / "user_models"
SHARED = ROOT.parent / "shared"
