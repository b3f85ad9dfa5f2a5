"""Ids and topics of transactions, as text and as URLs."""

from typing import Any, Final

from pybroker.base.errors import InvalidTopicName
from pybroker.base.names import TopicName
from pybroker.console.formats import topic_url

ROOT: Final = "/console/transactions"
API: Final = "/admin/v3/transactions"


def txn_url(txn_id: str) -> str:
    """The page of a transaction; `txn_id` is `(most,least)`, as in the admin API."""
    most, _, least = txn_id.strip("()").partition(",")
    return f"{ROOT}/{most}/{least}"


def link_of(topic: str) -> str | None:
    """The page of a topic with the name that a client used; None if the name is invalid."""
    try:
        return topic_url(str(TopicName.parse(topic)))
    except InvalidTopicName:
        return None


def short(topic: str) -> str:
    return topic.removeprefix("persistent://")


def route_parts(topic: str) -> dict[str, str] | None:
    """The variables in the paths of a topic's routes."""
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName:
        return None
    return {"tenant": name.tenant, "namespace": name.namespace, "topic": name.local}


SHARED: Final[dict[str, Any]] = {"txn_url": txn_url, "link_of": link_of, "short": short}
