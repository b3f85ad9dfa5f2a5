"""Names that users type: topics, namespaces, transaction ids; parsed once, at the edge."""

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pybroker.base.errors import InvalidTopicName, NotAllowed

# Namespaces and tenants are path elements and metadata keys; topics may hold more.
_PROPERTY: Final = re.compile(r"[-=:.\w]{1,255}", re.ASCII)
_ALLOWED: Final = "only 1 to 255 letters, digits and -=:._ are allowed in each name"
_LOCAL: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,5})\Z", re.DOTALL)
# A scalable topic, and a segment of one: `segment://tenant/namespace/topic/SSSS-EEEE-id`, with its
# range of hashes in hexadecimal.
SCALABLE: Final = "topic"
SEGMENT: Final = "segment"
_SEGMENT: Final = re.compile(r"(.+)/([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,17})\Z", re.DOTALL)
_DOMAINS: Final = ("persistent", "non-persistent", SEGMENT)
MAX_PROPERTIES_CHARS: Final = 64 * 1024  # per producer, consumer or subscription, in total
MAX_NAME_CHARS: Final = 1024  # for a topic's local name and a subscription's name
_MAX_SCALABLE_CHARS: Final = (
    MAX_NAME_CHARS - len("/0000-ffff-") - 18
)  # with a segment's range and id

# Local names that topics must not have: transaction logs have or had such names.
TRANSACTION_LOG_PREFIX: Final = "__transaction_log_"
SNAPSHOT_TOPIC: Final = "__transaction_buffer_snapshot"  # Apache Pulsar's, in each namespace
# Apache Pulsar's topics for its brokers' own use, in each namespace.
_SYSTEM_TOPICS: Final = frozenset(
    {
        "__change_events",
        SNAPSHOT_TOPIC,
        f"{SNAPSHOT_TOPIC}_indexes",
        f"{SNAPSHOT_TOPIC}_segments",
    }
)
# The logs of Kafka's committed offsets. A transaction's participant is one of these, with the group
# as its subscription.
KAFKA_OFFSETS_PREFIX: Final = "__kafka_offsets-partition-"
PENDING_ACK_SUFFIX: Final = "__transaction_pending_ack"
PENDING_ACK_LOGS: Final = "pending-acks/"
COMPACTED_LOGS: Final = "compacted/"
SIDE_LOGS: Final = "transactions-aside/"

# `0:42`, or `(0,42)` as answers have it; one parenthesis calls for the other.
_TXN_ID: Final = re.compile(r"(\()?(\d{1,20})[:,](\d{1,20})(?(1)\))", re.ASCII)
_TXN_ID_BITS: Final = 64  # of each half


class TxnId(NamedTuple):
    """A transaction's id on the wire: coordinator (most bits) and its counter (least bits)."""

    most: int
    least: int

    @classmethod
    def parse(cls, text: str) -> "TxnId":
        """Accepts `0:42` and `(0,42)`. Raises ValueError."""
        found = _TXN_ID.fullmatch(text)
        txn_id = cls(int(found[2]), int(found[3])) if found else None
        if txn_id is None or not txn_id.is_possible():
            raise ValueError("A transaction is most:least, such as 0:42")
        return txn_id

    def is_possible(self) -> bool:
        """Whether both halves have 64 bits."""
        return not max(self) >> _TXN_ID_BITS

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


class TopicName(NamedTuple):
    """`persistent://tenant/namespace/local`; a partition's local name ends in -partition-N. A
    segment of a scalable topic is a persistent topic, too.
    """

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Accepts short forms: `t` is persistent://public/default/t, `a/b/t` is persistent too.

        Raises InvalidTopicName.
        """
        return _parsed(text)

    @classmethod
    def of_ledger(cls, name: str) -> "TopicName":
        """The topic with this `ledger_name`."""
        tenant, namespace, domain, local = name.split("/", 3)
        return cls(domain, tenant, namespace, local)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """All texts that `parse` accepts for this topic, the whole name first."""
        whole = str(self)
        if self.domain != "persistent" or "://" in self.local:
            return (whole,)
        short = f"{self.namespace_name}/{self.local}"
        if self.namespace_name == "public/default" and "/" not in self.local:
            return whole, short, self.local
        return whole, short

    @property
    def namespace_name(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def persistent(self) -> bool:
        return self.domain != "non-persistent"

    @property
    def segment_id(self) -> int:
        """The number of a segment within its scalable topic."""
        return int(self.local.rpartition("-")[2])

    def segment(self, hash_start: int, hash_end: int, number: int) -> "TopicName":
        """A segment of this scalable topic."""
        local = f"{self.local}/{hash_start:04x}-{hash_end:04x}-{number}"
        return TopicName(SEGMENT, self.tenant, self.namespace, local)

    @property
    def internal(self) -> bool:
        """Whether the name is reserved for logs of the broker's own."""
        return self.local.startswith(
            (TRANSACTION_LOG_PREFIX, KAFKA_OFFSETS_PREFIX)
        ) or self.local.endswith(PENDING_ACK_SUFFIX)

    @property
    def system(self) -> bool:
        """Whether it is a topic for brokers, of either kind: policies for users' topics do not
        apply. Apache's brokers would trim what a cursor of deduplication has passed there, before
        they read it. Source: SystemTopicNames.
        """
        return (
            self.namespace_name == SYSTEM_NAMESPACE or self.partitioned_name.local in _SYSTEM_TOPICS
        )

    @property
    def partition(self) -> int:
        """The partition's index, or -1 for a topic that is not a partition."""
        match = _PARTITION.match(self.local)
        return int(match[2]) if match else -1

    @property
    def partitioned_name(self) -> "TopicName":
        """The partitioned topic of this partition, or the scalable topic of this segment; the name
        itself if it is neither.
        """
        if self.domain == SEGMENT:
            return self._replace(domain=SCALABLE, local=self.local.rpartition("/")[0])
        match = _PARTITION.match(self.local)
        return self._replace(local=match[1]) if match else self

    @property
    def scalable_name(self) -> "TopicName":
        """The scalable topic of this segment, or with the name of this ordinary topic."""
        return self.partitioned_name._replace(domain=SCALABLE)

    def partition_at(self, index: int) -> "TopicName":
        return self._replace(local=f"{self.local}-partition-{index}")

    @property
    def ledger_name(self) -> str:
        """The name of the managed ledger, as in Apache Pulsar: tenant/ns/persistent/topic."""
        return f"{self.tenant}/{self.namespace}/{self.domain}/{self.local}"


def whole_topic(text: str) -> TopicName:
    """The topic that a client of the V5 SDK names, perhaps a scalable one. Raises
    InvalidTopicName.
    """
    name = any_topic(text)
    if name.domain == SEGMENT:
        raise InvalidTopicName(
            f"Topic {text[:200]!r} is a segment: open {name.partitioned_name}, to which it belongs"
        )
    return name


def any_topic(text: str) -> TopicName:
    """Whatever can be looked up: also a scalable topic, which `TopicName.parse` refuses, because no
    producer or consumer can be attached to it. Raises InvalidTopicName.
    """
    if not text.startswith(f"{SCALABLE}://"):
        return TopicName.parse(text)
    name = TopicName.parse("persistent" + text.removeprefix(SCALABLE))
    if name.partition >= 0 or len(name.local) > _MAX_SCALABLE_CHARS:
        raise InvalidTopicName(
            f"Topic {text[:200]!r}: the name of a scalable topic must not end like a partition's, "
            f"and has at most {_MAX_SCALABLE_CHARS} characters after the namespace"
        )
    return name._replace(domain=SCALABLE)


@lru_cache(maxsize=1000)
def topic_of_ledger(name: str) -> str:
    """The whole name of the topic with this `ledger_name`."""
    return str(TopicName.of_ledger(name))


@lru_cache(maxsize=1000)  # the same few names recur in every transaction
def _parsed(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
        if rest.count("/") == 0:
            rest = f"public/default/{rest}"
    parts = rest.split("/", 2)
    if domain not in _DOMAINS:
        advice = ""
        if domain == SCALABLE:
            advice = f": open scalable topics with the V5 SDK, or use persistent://{rest[:200]}"
        raise InvalidTopicName(
            f"Topic {text[:200]!r}: the domain must be persistent or non-persistent{advice}"
        )
    # Checks the local part only: a short form must not become too long when expanded.
    if len(parts) != 3 or len(parts[2]) > MAX_NAME_CHARS:
        raise InvalidTopicName(
            f"Topic {text[:200]!r} is not of the form persistent://tenant/namespace/topic "
            f"with at most {MAX_NAME_CHARS} characters after the namespace"
        )
    tenant, namespace, local = parts
    for part in (tenant, namespace):
        if not _is_property(part):
            raise InvalidTopicName(
                f"Topic {text[:200]!r}: tenant and namespace may contain letters, digits and -=:._"
            )
    if not _LOCAL.fullmatch(local) or local in (".", ".."):
        raise InvalidTopicName(
            f"Topic {text[:200]!r}: the topic part is empty or contains control characters"
        )
    if domain == SEGMENT and ((found := _SEGMENT.match(local)) is None or found[2] > found[3]):
        raise InvalidTopicName(
            f"Topic {text[:200]!r}: a segment's name ends in /SSSS-EEEE-id, with the first and the "
            "last hash of its range as four hexadecimal digits"
        )
    return TopicName(domain, sys.intern(tenant), sys.intern(namespace), local)


def _is_property(name: str) -> bool:
    return _PROPERTY.fullmatch(name) is not None and name not in (".", "..")


def check_tenant_name(name: str) -> None:
    """Raises InvalidTopicName unless it has only letters, digits and -=:._"""
    if not _is_property(name):
        raise InvalidTopicName("Tenant name is not valid", f"{name[:200]!r}: {_ALLOWED}")


def check_namespace_name(name: str) -> None:
    """`name` is tenant/namespace. Raises InvalidTopicName."""
    tenant, _, namespace = name.partition("/")
    if not (_is_property(tenant) and _is_property(namespace)):
        advice = f"{name[:200]!r} must be tenant/namespace; {_ALLOWED}"
        raise InvalidTopicName("Namespace name is not valid", advice)


def check_subscription_name(name: str) -> None:
    """Raises NotAllowed if it is empty or too long."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise NotAllowed(
            f"Subscription {name[:200]!r}: a name must have 1 to {MAX_NAME_CHARS} characters"
        )


def check_client(kind: str, name: str, properties: Mapping[str, str]) -> None:
    """Check the size of a producer's or consumer's name and properties, which are kept while it is
    connected. Raises NotAllowed.
    """
    if len(name) > MAX_NAME_CHARS:
        raise NotAllowed(
            f"{kind} {name[:200]!r}: a name may have at most {MAX_NAME_CHARS} characters"
        )
    size = sum(map(len, properties)) + sum(map(len, properties.values()))
    if size > MAX_PROPERTIES_CHARS:
        raise NotAllowed(
            f"{kind} {name[:200]!r}: its properties have {size} characters; at most "
            f"{MAX_PROPERTIES_CHARS} are allowed"
        )


def pending_ack_log(topic: TopicName, subscription: str) -> str:
    """The name of the managed ledger of a subscription's transactional acknowledgements. It has
    three parts, which are quoted, and a topic's name has at least four: so names never collide.
    """
    return pending_ack_logs(topic) + quote(subscription, safe="")


def foreign_pending_ack_log(topic: TopicName, subscription: str) -> str:
    """Apache Pulsar's name for the same log."""
    return f"{topic.ledger_name}-{subscription}{PENDING_ACK_SUFFIX}"


def pending_ack_logs(topic: TopicName) -> str:
    """The prefix that all pending-ack logs of a topic have, and no other log."""
    return f"{PENDING_ACK_LOGS}{quote(topic.ledger_name, safe='')}/"


def compacted_log(topic: TopicName, generation: int) -> str:
    """The name of the managed ledger of a topic's compacted log in this generation."""
    return f"{compacted_logs(topic)}{generation}"


def compacted_logs(topic: TopicName) -> str:
    """The prefix that all compacted logs of a topic have, and no other log."""
    return f"{COMPACTED_LOGS}{quote(topic.ledger_name, safe='')}/"


def side_log(ledger_name: str) -> str:
    """The name of the managed ledger in which a topic's transactions wait for their commit."""
    return f"{SIDE_LOGS}{quote(ledger_name, safe='')}/log"


def topic_of_side_log(name: str) -> str:
    """The ledger name of the topic of a side log."""
    return unquote(name.removeprefix(SIDE_LOGS).split("/")[0])


def belongs_to_a_topic(ledger_name: str) -> bool:
    """Whether the name is that of a log beside a topic's own. Prefixes and suffixes do not decide
    this: a tenant's name may begin like such a log, and a subscription's name may end like their
    former names.
    """
    return ledger_name.count("/") == 2


def topic_of_compacted_log(name: str) -> tuple[str, int]:
    """The topic's ledger name and the generation."""
    topic, generation = name.removeprefix(COMPACTED_LOGS).split("/")
    return unquote(topic), int(generation)


def subscription_of_log(name: str) -> tuple[str, str]:
    """The topic's ledger name and the subscription that a pending-ack log belongs to."""
    topic, subscription = map(unquote, name.removeprefix(PENDING_ACK_LOGS).split("/"))
    return topic, subscription


def topic_of_log(name: str) -> TopicName | None:
    """The topic to which a managed ledger belongs, or whose messages it stores."""
    if name.startswith((PENDING_ACK_LOGS, COMPACTED_LOGS, SIDE_LOGS)) and belongs_to_a_topic(name):
        name = unquote(name.split("/")[1])
    return TopicName.of_ledger(name) if name.count("/") >= 3 else None


SYSTEM_NAMESPACE: Final = "pulsar/system"
KAFKA_OFFSETS: Final = f"persistent://{SYSTEM_NAMESPACE}/{KAFKA_OFFSETS_PREFIX}"
# What exactly-once queries of PySpark rest on: no pattern finds these topics
# (`TopicList.of_users`), and no policy of age takes them (`is_kept_by_its_name`).
SPARK_TOPICS: Final = "__spark-"
HEALTH_LOG: Final = "__health"  # a managed ledger without a topic
COORDINATOR_ASSIGN: Final = TopicName(
    "persistent", "pulsar", "system", "transaction_coordinator_assign"
)


def is_kept_by_its_name(name: TopicName) -> bool:
    """Whether policies of age do not apply: message TTL, the backlog quota of age, the deletion of
    inactive topics and of unused subscriptions. A query's newest marker is as old as its last
    batch, and without it nobody knows what was published.

    Quotas of size apply: the name must not be a way around them.
    """
    return name.local.startswith(SPARK_TOPICS)
