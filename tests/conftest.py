"""What several test packages share stands in tests/support and is imported by its module's name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
