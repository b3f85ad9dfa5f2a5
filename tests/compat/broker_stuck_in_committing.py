"""`pybroker` whose participants never answer: transactions decide to commit and stay COMMITTING.

Its first argument names a pipe, to which it writes once a transaction is stuck; tests then kill it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.process.cli import main

STUCK = Path(sys.argv[1])


async def _never_answer(*_: Any) -> None:
    STUCK.write_text("stuck")  # noqa: ASYNC240
    await asyncio.Event().wait()


LocalParticipants.end_on_partition = _never_answer  # type: ignore[method-assign]
LocalParticipants.end_on_subscription = _never_answer  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
