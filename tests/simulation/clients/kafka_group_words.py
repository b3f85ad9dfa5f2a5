"""Requests of groups, in a word each, for the simulation's Kafka clients."""

import json
from typing import Final, NamedTuple

from clients.kafka_peer import Body, KafkaClient
from clients.kafka_words import Answer, Owner, Place
from pybroker.kafka.errors import ErrorCode

OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, GROUP_HEARTBEAT = 9, 11, 12, 13, 14, 68
ADD_OFFSETS, TXN_OFFSET_COMMIT = 25, 28
SESSION_TIMEOUT_MS: Final = 6000
REBALANCE_TIMEOUT_MS: Final = 3000
_KIND: Final = "simulated"
NOTHING: Final = -1  # the offset of a partition for which nothing was committed


class Membership(NamedTuple):
    """A member of a group in one generation."""

    group: str
    member_id: str
    generation: int  # of a KIP-848 group: the member's epoch
    instance_id: str | None = None  # of a static member

    @property
    def fields(self) -> Body:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


class Joined(NamedTuple):
    code: ErrorCode
    membership: Membership
    others: list[str]  # all members, if this one leads


async def join(
    client: KafkaClient, group: str, member_id: str, instance_id: str | None = None
) -> Joined:
    """Waits for the other members. `member_id`: empty for a new one."""
    asked = {
        "group_id": group,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": _KIND,
        "protocols": [{"name": "one", "metadata": b""}],
    }
    body = await client.ask(JOIN, 5, asked)
    membership = Membership(group, body["member_id"], body["generation_id"], instance_id)
    others = [each["member_id"] for each in body["members"]]
    return Joined(ErrorCode(body["error_code"]), membership, others)


async def sync(
    client: KafkaClient, membership: Membership, assigned: dict[str, list[Place]]
) -> tuple[ErrorCode, list[Place]]:
    """`assigned`: by member, if this one leads."""
    assignments = [
        {"member_id": member_id, "assignment": json.dumps(places).encode()}
        for member_id, places in assigned.items()
    ]
    body = await client.ask(SYNC, 3, {**membership.fields, "assignments": assignments})
    places = [Place(*each) for each in json.loads(body["assignment"] or b"[]")]
    return ErrorCode(body["error_code"]), places


async def heartbeat(client: KafkaClient, membership: Membership) -> ErrorCode:
    return ErrorCode((await client.ask(HEARTBEAT, 3, membership.fields))["error_code"])


async def leave(client: KafkaClient, membership: Membership) -> None:
    members = [{"member_id": membership.member_id}]
    await client.ask(LEAVE, 3, {"group_id": membership.group, "members": members})


class Beaten(NamedTuple):
    """The answer to a heartbeat of KIP-848."""

    code: ErrorCode
    epoch: int = -1
    assigned: frozenset[Place] | None = None  # None: as before


async def beat(
    client: KafkaClient,
    membership: Membership,
    ids: dict[str, bytes],
    owned: frozenset[Place] | None,
) -> Beaten:
    """`ids`: of the topics that it subscribes to. `owned`: None if that has not changed."""
    asked: Body = {
        "group_id": membership.group,
        "member_id": membership.member_id,
        "member_epoch": membership.generation,
        "instance_id": membership.instance_id,
        "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        "subscribed_topic_names": sorted(ids),
        "topic_partitions": None,
    }
    if owned is not None:
        asked["topic_partitions"] = [
            {"topic_id": ids[each.topic], "partitions": [each.partition]} for each in sorted(owned)
        ]
    body = await client.ask(GROUP_HEARTBEAT, 1, asked)
    if body["error_code"]:
        return Beaten(ErrorCode(body["error_code"]))
    assigned = None
    if body["assignment"] is not None:
        names = {each: name for name, each in ids.items()}
        assigned = frozenset(
            Place(names[bytes(each["topic_id"])], partition)
            for each in body["assignment"]["topic_partitions"]
            for partition in each["partitions"]
        )
    return Beaten(ErrorCode.NONE, body["member_epoch"], assigned)


async def add_group(client: KafkaClient, owner: Owner, group: str) -> ErrorCode:
    body = await client.ask(ADD_OFFSETS, 3, {**owner.fields, "group_id": group})
    return ErrorCode(body["error_code"])


async def commit_in(
    client: KafkaClient, owner: Owner, membership: Membership, place: Place, offset: int
) -> ErrorCode:
    """In the owner's transaction."""
    partition = {"partition_index": place.partition, "committed_offset": offset}
    topics = [{"name": place.topic, "partitions": [{**partition, "committed_metadata": ""}]}]
    asked = {**owner.fields, **membership.fields, "topics": topics}
    body = await client.ask(TXN_OFFSET_COMMIT, 5 if owner.newer else 3, asked)
    return ErrorCode(body["topics"][0]["partitions"][0]["error_code"])


async def committed_offset(client: KafkaClient, group: str, place: Place) -> Answer:
    """What no transaction can change any more, or UNSTABLE_OFFSET_COMMIT."""
    topics = [{"name": place.topic, "partition_indexes": [place.partition]}]
    body = await client.ask(
        OFFSET_FETCH, 7, {"group_id": group, "topics": topics, "require_stable": True}
    )
    if body["error_code"]:
        return Answer(ErrorCode(body["error_code"]))
    found = body["topics"][0]["partitions"][0]
    return Answer(ErrorCode(found["error_code"]), found["committed_offset"])
