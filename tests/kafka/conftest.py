"""The worlds of transactions serve these tests, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "transaction"))
