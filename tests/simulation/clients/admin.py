"""An administrator's requests from a client process: like HTTP requests, without HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sim_broker import BrokerProcess

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.topics import Topics
from pybroker.simulation.faults import Fault

ANSWER_WITHIN_S = 20.0
REFUSALS = (PulsarError, ManagedLedgerError, Conflict)


class Unanswered(Exception):
    """The broker was down, or died: it may or may not have done the work."""


async def ask(
    broker: BrokerProcess, work: Callable[[Topics], Awaitable[Any]], crash: Fault | None = None
) -> Any:
    """The answer, or the error with which the broker refused. `crash` happens during the work.

    Raises Unanswered.
    """
    if not broker.serving or broker.node is None or broker.broker is None:
        raise Unanswered("the broker is down")
    here = asyncio.get_running_loop()
    answer = here.create_future()
    world, topics = broker.world, broker.topics

    async def do() -> None:
        result, error = None, None
        try:
            result = await work(topics)
        except Exception as raised:
            error = raised
        world.after(world.network.latency(), here.call_soon, _settle, answer, result, error)

    broker.node.create_task(do(), name="administrator")
    if crash is not None:
        broker.crash(crash)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await answer
    except TimeoutError:
        raise Unanswered("no answer came") from None


def _settle(answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
