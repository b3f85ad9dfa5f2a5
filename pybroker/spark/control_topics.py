"""The names of the topics on which the sink keeps markers and notes, beside the topics it writes.

They begin as system topics do, so that no pattern finds them, and a broker keeps them whatever its
policies say of old messages (pybroker.base.names.is_kept_by_its_name). Earlier versions had other
names; a query that began with one of these continues there.
"""

from typing import Final

from pybroker.base.errors import TopicNotFound
from pybroker.base.names import SPARK_TOPICS
from pybroker.spark.session import Session

JOBS: Final = f"{SPARK_TOPICS}jobs"

_FORMER_START: Final = "spark-"
_FORMER_QUERY: Final = f"{_FORMER_START}query-"
FORMER_JOBS: Final = f"{_FORMER_START}jobs"
_ID_PARTS: Final = 5


def of_query(query_id: str) -> str:
    return f"{SPARK_TOPICS}query-{query_id}"


def former_of_query(query_id: str) -> str:
    return f"{_FORMER_QUERY}{query_id}"


def is_former(local_name: str) -> bool:
    """Whether an earlier version may have given this name to a topic of its own."""
    query_id = local_name.removeprefix(_FORMER_QUERY)
    is_query = query_id != local_name and len(query_id.split("-")) == _ID_PARTS
    return is_query or local_name == FORMER_JOBS


def asks_for_former(pattern: str) -> bool:
    return _FORMER_START in pattern


def first_partition(session: Session, topic: str, former: str = "") -> str:
    """Markers and notes need an order, so they use the first partition of a partitioned topic; that
    of `former` as long as it exists. Creates `topic` if it is missing."""
    if former and exists(session, former):
        topic = former
    return session.partitions(topic)[0]


def first_partition_for_jobs(session: Session, topic: str, former: str) -> str:
    """The same for jobs, which leave nothing that another one needs: `former` is used only where a
    broker creates no topics and somebody has created that one."""
    try:
        return session.partitions(topic)[0]
    except TopicNotFound:
        if not former or not exists(session, former):
            raise
    return session.partitions(former)[0]


def exists(session: Session, topic: str) -> bool:
    """Without creating it."""
    try:
        first = session.partitions(topic, create=False)[0]
        if not session.asks_about_many:  # Such a broker reports nothing about a missing topic.
            session.last_position(first, create=False)
    except TopicNotFound:
        return False
    return True
