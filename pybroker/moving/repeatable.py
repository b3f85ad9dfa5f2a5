"""Commands that continue where they were interrupted, if they are given again."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError

EXIT_FAILED: Final = 1
_EXIT_INTERRUPTED: Final = 130


def run(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of the command."""
    try:
        return asyncio.run(work)
    except (ManagedLedgerError, PulsarError, OSError, ValueError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("pybroker: interrupted; the same command continues from here", file=sys.stderr)
        return _EXIT_INTERRUPTED
