"""ShareFetch (KIP-932): records for a member of a share group, and what it says of earlier ones.

- 2: locks may be renewed (KIP-1222); a member may ask for no more than so many records (KIP-1206).

A share group is a Shared subscription of that name: Pulsar's clients may be in it, too. What the
dispatcher hands to the member is locked for it, until it says what became of it, or its lock runs
out. With less than min_bytes the request waits for max_wait_ms, and is woken by the dispatcher.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from managed_ledger.position import EARLIEST
from pybroker.broker.policies.limits import check_type
from pybroker.broker.policies.table import AUTO_SUBSCRIPTION_CREATION
from pybroker.broker.subscriptions import isolation
from pybroker.broker.subscriptions.consumer import SubscribeRequest, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.kafka.errors import (
    REFUSALS,
    ErrorCode,
    KafkaError,
    error_code,
    error_fields,
    error_message,
)
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.pacing import paced
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation, require_group
from pybroker.kafka.requests.share_acknowledge import NO_LEADER
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.acknowledging import Failures, Said, acknowledge, asked_of
from pybroker.kafka.shares.share_configs import ShareConfigs
from pybroker.kafka.shares.share_consumer import ShareConsumer, Taken
from pybroker.kafka.shares.share_sessions import (
    BEGINS,
    ENDS,
    SharePlace,
    ShareSession,
    ShareSessions,
    member_of,
)
from pybroker.kafka.topics import learn_ids

_MOST_WAIT_S: Final = 30.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_RECORDS: Final = 100_000
_RECORD_LIMIT: Final = 1  # share_acquire_mode


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    sessions, epoch = ShareSessions.of(session), request["share_session_epoch"]
    most_chars = services.groups.limits.max_group_id_chars
    member = member_of(request["group_id"], request["member_id"], most_chars)
    require_group(services, session, member.group_id)
    said = await asked_of(request["topics"])
    if epoch == BEGINS and any(said.values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A new session has nothing to acknowledge")
    share = sessions.begun(member) if epoch == BEGINS else sessions.continued(member, epoch)
    refused = await acknowledge(share, said, request["is_renew_ack"])
    if epoch == ENDS:
        sessions.end(member)
    else:
        await _change(share, said, request)
    configs = ShareConfigs.of(services.group_configs.of(member.group_id))
    fetching = _Fetching(services, session, share, configs)
    if epoch != ENDS and not request["is_renew_ack"]:
        await fetching.fetch(request)
    return {
        "acquisition_lock_timeout_ms": configs.record_lock_duration_ms,
        "responses": fetching.responses(said, refused),
    }


async def _change(share: ShareSession, said: Said, request: Request) -> None:
    """Adds the partitions of a request, and removes the forgotten ones. Raises KafkaError."""
    for place in said:
        share.add(place)
    async for topic in paced(request["forgotten_topics_data"]):
        for partition in topic["partitions"]:
            share.remove(SharePlace(topic["topic_id"], partition))


class _Fetching:
    def __init__(
        self,
        services: KafkaServices,
        session: Session,
        share: ShareSession,
        configs: ShareConfigs,
    ) -> None:
        self._services = services
        self._session = session
        self._share = share
        self._configs = configs
        self._taken: dict[SharePlace, Taken] = {}
        self._failures: Failures = {}

    async def fetch(self, request: Request) -> None:
        """Tells of new failures at once. A client asks again at once, so that those of which it
        was told wait with the others.
        """
        ends_s = self._now_s + min(max(0, request["max_wait_ms"]) / 1000, _MOST_WAIT_S)
        consumers = await self._consumers()
        records = min(request["max_records"], _MOST_RECORDS)
        if records > 0 and consumers:
            await self._fetch(request, consumers, records, ends_s)
        is_told = not self._news
        self._share.failing = frozenset(self._failures)
        if self._failures and is_told and not self._taken:
            await asyncio.sleep(max(0, ends_s - self._now_s))

    @property
    def _news(self) -> bool:
        return not self._failures.keys() <= self._share.failing

    async def _fetch(
        self,
        request: Request,
        consumers: Mapping[SharePlace, ShareConsumer],
        records: int,
        ends_s: float,
    ) -> None:
        wanted_bytes = min(max(0, request["max_bytes"]), _MOST_BYTES)
        room_bytes = self._services.fetched.take(self._session, wanted_bytes)
        least_bytes = min(request["min_bytes"], room_bytes)
        is_strict = request["share_acquire_mode"] == _RECORD_LIMIT
        size_bytes, failures = 0, len(self._failures)
        while True:
            wait_s = 0.0 if self._news else ends_s - self._now_s
            await self._arrived(consumers, records, room_bytes, least_bytes, wait_s)
            size_bytes = await self._take(consumers, records, room_bytes, is_strict)
            # A first chunk may have arrived, or a batch that is given up.
            if size_bytes or len(self._failures) > failures or self._now_s >= ends_s:
                break
        self._services.fetched.used(self._session, size_bytes)

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _arrived(
        self,
        consumers: Mapping[SharePlace, ShareConsumer],
        records: int,
        room_bytes: int,
        least_bytes: int,
        wait_s: float,
    ) -> None:
        each = -(-records // len(consumers))
        try:
            for consumer in consumers.values():
                consumer.ask(each, room_bytes, self._configs)
            await _wait(list(consumers.values()), least_bytes, wait_s)
        finally:
            for consumer in consumers.values():
                consumer.ask_no_more()

    async def _take(
        self,
        consumers: Mapping[SharePlace, ShareConsumer],
        records: int,
        room_bytes: int,
        is_strict: bool,
    ) -> int:
        size_bytes = 0
        for place, consumer in consumers.items():
            if records <= 0 or (size_bytes and size_bytes >= room_bytes):
                break
            try:
                taken = await consumer.take(
                    records, room_bytes - size_bytes, is_strict, not size_bytes
                )
            except REFUSALS as error:
                self._failures[place] = error
                continue
            if consumer.closed:
                self._failures[place] = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif taken.batches:
                self._taken[place] = taken
                records -= taken.records
                size_bytes += taken.size_bytes
        return size_bytes

    async def _consumers(self) -> dict[SharePlace, ShareConsumer]:
        found = {}
        async for place in paced(self._share.in_turn()):
            try:
                found[place] = await self._consumer(place)
            except REFUSALS as error:
                self._failures[place] = error
        return found

    async def _consumer(self, place: SharePlace) -> ShareConsumer:
        """Raises KafkaError, PulsarError, ManagedLedgerError."""
        await learn_ids(self._services, [place.topic_id])
        topic = self._services.topic_ids.name_of(place.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        log = await partition_log_of(
            self._services, self._session, topic, place.partition, Operation.READ
        )
        known = self._share.partitions.get(place)
        if known is None or known.closed:
            known = await ShareConsumer.joined(
                log, await self._subscription(log), self._subscribe_request()
            )
            self._share.partitions[place] = known
        return known

    async def _subscription(self, log: PartitionLog) -> Subscription:
        topic, name = log.topic, self._share.member.group_id
        check_type(topic, SubscriptionType.SHARED)
        properties = {}
        if name not in topic.subscriptions:
            properties[isolation.PROPERTY] = self._configs.isolation_level
        start = EARLIEST if self._configs.begins_at_earliest else None
        may_create = topic.policies[AUTO_SUBSCRIPTION_CREATION]["allowAutoSubscriptionCreation"]
        return await topic.subscription(name, start, properties, may_create)

    def _subscribe_request(self) -> SubscribeRequest:
        session, services = self._session, self._services
        return SubscribeRequest(
            self._share.next_id(),
            self._share.member.member_id,
            connection=session.number,
            address=session.peer,
            client_version=f"{session.software_name} {session.software_version}".strip(),
            app_id=None if session.identity is None else session.identity.acting,
            connected_since_ms=services.clock.now_ms(),
            takes_stored=True,
        )

    # -- the response

    def responses(self, said: Said, refused: Failures) -> list[dict[str, Any]]:
        """Of partitions with records, errors, or acknowledgements in the request."""
        places = [*self._taken, *self._failures, *(each for each in said if said[each])]
        by_topic: dict[bytes, list[dict[str, Any]]] = {}
        for place in dict.fromkeys(places):
            found = self._partition(place, refused.get(place))
            by_topic.setdefault(place.topic_id, []).append(found)
        return [{"topic_id": each, "partitions": found} for each, found in by_topic.items()]

    def _partition(self, place: SharePlace, refused: Exception | None) -> dict[str, Any]:
        taken = self._taken.get(place, Taken())
        found = {
            "partition_index": place.partition,
            "current_leader": NO_LEADER,
            "records": b"".join(taken.batches),
            "acquired_records": [
                {
                    "first_offset": each.first,
                    "last_offset": each.last,
                    "delivery_count": each.delivery_count,
                }
                for each in taken.acquired
            ],
        }
        if (failed := self._failures.get(place)) is not None:
            found |= error_fields(failed)
        if refused is not None:
            found["acknowledge_error_code"] = error_code(refused)
            found["acknowledge_error_message"] = error_message(refused)
        return found


async def _wait(consumers: list[ShareConsumer], least_bytes: int, wait_s: float) -> None:
    """Returns when so much has arrived, a consumer has lost its partition, or after `wait_s`."""
    changed = asyncio.Event()
    for consumer in consumers:
        consumer.when_arrived = changed.set
    await asyncio.sleep(0)  # the dispatchers hand out what they have at hand
    try:
        async with asyncio.timeout(wait_s):
            while not _is_enough(consumers, least_bytes):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return
    finally:
        for consumer in consumers:
            consumer.when_arrived = None


def _is_enough(consumers: list[ShareConsumer], least_bytes: int) -> bool:
    if any(each.closed for each in consumers):
        return True
    return sum(each.arrived_bytes for each in consumers) >= max(1, least_bytes)
