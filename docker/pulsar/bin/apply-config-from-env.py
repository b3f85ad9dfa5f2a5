#!/usr/bin/env python3
"""apply-config-from-env.py FILE…: writes settings from the environment into configuration files.

PULSAR_PREFIX_key sets a key, even if the file lacks it. A variable with the name of a key in the
file sets that key.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from config_from_env import apply

    if len(sys.argv) < 2:
        sys.exit(f"Usage: {sys.argv[0]} FILE…")
    for name in sys.argv[1:]:
        apply(Path(name), os.environ, "PULSAR_PREFIX_", bare=True)
