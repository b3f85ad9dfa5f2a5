"""Ids and topics of transactions, as text and as addresses."""

from typing import Any, Final

from pybroker.base.errors import InvalidTopicName
from pybroker.base.names import TopicName
from pybroker.console.formats import topic_url

ROOT: Final = "/console/transactions"
API: Final = "/admin/v3/transactions"


def txn_url(txn_id: str) -> str:
    """Of one as the admin API writes it, `(most,least)`."""
    most, _, least = txn_id.strip("()").partition(",")
    return f"{ROOT}/{most}/{least}"


def link_of(topic: str) -> str | None:
    """Of a topic as its client named it; None where that is no name of a topic."""
    try:
        return topic_url(str(TopicName.parse(topic)))
    except InvalidTopicName:
        return None


def short(topic: str) -> str:
    return topic.removeprefix("persistent://")


def route_parts(topic: str) -> dict[str, str] | None:
    """For the routes that are about a topic."""
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName:
        return None
    return {"tenant": name.tenant, "namespace": name.namespace, "topic": name.local}


SHARED: Final[dict[str, Any]] = {"txn_url": txn_url, "link_of": link_of, "short": short}
