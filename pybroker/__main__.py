"""`python -m pybroker` is the `pybroker` command."""

import sys

from pybroker.process.cli import main

if __name__ == "__main__":
    sys.exit(main())
