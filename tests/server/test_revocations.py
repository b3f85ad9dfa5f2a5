"""When connections are checked after permissions have changed."""

import asyncio
from typing import Any

from pybroker.server.connections.session import Session
from pybroker.server.guarded import Revocations


def test_what_changes_right_behind_a_look_is_looked_at_too() -> None:
    """The change comes after the check has ended, and before its callbacks."""
    looks = 0

    def sessions() -> list[Session]:
        nonlocal looks
        looks += 1
        return []

    async def scenario() -> None:
        nobody: Any = None
        revocations = Revocations(nobody, sessions)
        revocations.changed()
        asyncio.get_running_loop().call_soon(revocations.changed)
        await asyncio.sleep(0)
        await revocations.applied()
        assert looks == 2

    asyncio.run(scenario())
