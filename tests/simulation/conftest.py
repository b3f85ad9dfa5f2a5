"""Lets the simulation's modules import each other and the packages, however pytest is started."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE.parents[1], HERE.parent / "bookkeeper", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
