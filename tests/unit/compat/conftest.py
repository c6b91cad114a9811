"""The shims are a distribution of their own, which the tests' environment need not have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))
