"""What other brokers have answered."""

from starlette.exceptions import HTTPException

from pybroker.broker.other_brokers import Reply


def check(reply: Reply) -> Reply:
    """Raises HTTPException with what the other broker says."""
    if not reply.is_done:
        said = reply.json()
        reason = said.get("reason") if isinstance(said, dict) else None
        raise HTTPException(reply.status, str(reason or f"a broker answered {reply.status}"))
    return reply
