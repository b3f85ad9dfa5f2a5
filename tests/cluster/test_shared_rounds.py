import asyncio

import pytest

from pybroker.cluster.shared_rounds import SharedRounds


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        self.began.set()
        number = self.begun
        await self.go_on.wait()
        if number == 1:
            raise OSError("not reached")


def test_each_caller_gets_a_round_that_began_after_the_call() -> None:
    async def scenario() -> None:
        work = Work()
        rounds = SharedRounds(work)
        first = asyncio.ensure_future(rounds.one())
        await work.began.wait()
        later = [asyncio.ensure_future(rounds.one()) for _ in range(1000)]
        await asyncio.sleep(0)
        later[0].cancel()
        assert work.begun == 1
        work.go_on.set()
        with pytest.raises(OSError, match="not reached"):
            await first
        await asyncio.gather(*later[1:])
        assert work.begun == 2
        await rounds.one()
        assert work.begun == 3

    asyncio.run(scenario())
