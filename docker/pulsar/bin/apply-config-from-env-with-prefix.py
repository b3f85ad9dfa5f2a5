#!/usr/bin/env python3
"""apply-config-from-env-with-prefix.py PREFIX FILE…: PREFIXkey sets a key of the files."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from config_from_env import apply

    if len(sys.argv) < 3:
        sys.exit(f"Usage: {sys.argv[0]} PREFIX FILE…")
    for name in sys.argv[2:]:
        apply(Path(name), os.environ, sys.argv[1], bare=False)
