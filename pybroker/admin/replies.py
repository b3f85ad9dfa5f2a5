"""Checks the answers of other brokers."""

from starlette.exceptions import HTTPException

from pybroker.broker.brokers.other_brokers import Reply


def check(reply: Reply) -> Reply:
    """Raises HTTPException with the other broker's status and reason if it refused."""
    if not reply.is_done:
        said = reply.json()
        reason = said.get("reason") if isinstance(said, dict) else None
        raise HTTPException(reply.status, str(reason or f"a broker answered {reply.status}"))
    return reply
