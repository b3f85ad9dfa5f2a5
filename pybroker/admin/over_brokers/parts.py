"""Routes for a partitioned topic whose partitions are on several brokers.

Each partition's broker executes its part, and the answers are joined as if a single broker had
answered. If one partition refuses, the refusal is the answer, and changes to other partitions are
not undone: each of these requests may be repeated.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.errors import BadVersion
from managed_ledger.position import EARLIEST
from managed_ledger.storage.backend import KeyAt
from pybroker.admin.over_brokers.asking import DELETION, Asking, all_of, continues
from pybroker.admin.replies import check
from pybroker.admin.routes.compaction import TELLING
from pybroker.admin.routing import flag, partitioned_metadata, read_json
from pybroker.admin.stats.topic import merged_stats
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import ONLY_DOOMED, Reply
from pybroker.broker.topics import Topics

_T: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_S: Final = _T + "/subscription/{subscription}"
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_IN_USE: Final = 412

Replies = Sequence[tuple[TopicName, Reply]]
Join = Callable[[Replies], Any]
# Answers a request; receives the partitioned topic and the number of its partitions.
Spread = Callable[[Request, TopicName, int], Awaitable[Any]]


class PartRoutes:
    def __init__(self, topics: Topics, asking: Asking) -> None:
        self._topics = topics
        self._asking = asking

    def by_route(self) -> dict[tuple[str, str], Spread]:
        all_done = (
            ("PUT", f"{_T}/unload"),
            ("POST", f"{_T}/trim"),
            ("DELETE", f"{_T}/truncate"),
            ("PUT", f"{_T}/compaction"),
            ("POST", f"{_T}/all_subscription/expireMessages/{{age_s}}"),
        )
        some_done = (  # on those partitions that have the subscription
            ("POST", f"{_S}/skip_all"),
            ("POST", f"{_S}/expireMessages/{{age_s}}"),
            ("POST", f"{_S}/resetcursor/{{timestamp_ms}}"),
            ("PUT", f"{_S}/properties"),
            ("POST", f"{_S}/replicatedSubscriptionStatus"),
        )
        return {
            **{each: partial(self._each, *each, _done) for each in all_done},
            **{each: partial(self._each, *each, _found) for each in some_done},
            ("GET", f"{_S}/properties"): partial(self._each, "GET", f"{_S}/properties", _first),
            ("GET", f"{_S}/replicatedSubscriptionStatus"): partial(
                self._each, "GET", f"{_S}/replicatedSubscriptionStatus", _joined
            ),
            ("GET", f"{_T}/subscriptions"): partial(
                self._each, "GET", f"{_T}/subscriptions", _united
            ),
            ("GET", f"{_T}/internal-info"): partial(
                self._each, "GET", f"{_T}/internal-info", _infos
            ),
            ("GET", f"{_T}/compaction"): partial(self._each, "GET", f"{_T}/compaction", _process),
            ("POST", f"{_T}/terminate/partitions"): partial(
                self._each, "POST", f"{_T}/terminate", _by_number
            ),
            ("POST", f"{_S}/resetcursor"): self._reset,
            ("PUT", _S): partial(self._each, "PUT", _S, _created),
            ("DELETE", _S): self._delete_subscription,
            ("GET", f"{_T}/partitioned-stats"): self._stats,
            ("GET", f"{_T}/partitioned-internalStats"): self._internal_stats,
            ("POST", f"{_T}/partitions"): self._grow,
            ("DELETE", f"{_T}/partitions"): self._delete,
        }

    # --- the same request to each partition

    async def _each(
        self, method: str, template: str, join: Join, request: Request, name: TopicName, count: int
    ) -> Any:
        return join(await self._ask(request, _parts(name, count), method, template))

    async def _ask(
        self,
        request: Request,
        names: Sequence[TopicName],
        method: str,
        template: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        **parts: str,
    ) -> Replies:
        if query is None:
            query = dict(request.query_params)
        if body is None and method != "GET" and int(request.headers.get("content-length", "0")):
            body = await read_json(request)

        async def ask(name: TopicName) -> Reply:
            return await self._asking.topic(request, name, method, template, query, body, **parts)

        return [each async for each in all_of(names, ask)]

    async def _reset(self, request: Request, name: TopicName, count: int) -> Any:
        if await read_json(request) not in ("earliest", "latest"):
            raise HTTPException(405, f"{name} is partitioned: reset one of its partitions")
        return await self._each("POST", f"{_S}/resetcursor", _found, request, name, count)

    async def _delete_subscription(self, request: Request, name: TopicName, count: int) -> Any:
        """Deletes nothing if a partition has consumers, unless ?force=true."""
        names, subscription = _parts(name, count), request.path_params["subscription"]
        if not flag(request, "force"):
            for _, stats in await self._stats_of(request, names):
                if stats["subscriptions"].get(subscription, {}).get("consumers"):
                    raise HTTPException(
                        _IN_USE,
                        f"Subscription {subscription} has connected consumers; close them or use "
                        "force",
                    )
        return _found(await self._ask(request, names, "DELETE", _S))

    # --- statistics

    async def _stats_of(
        self, request: Request, names: Sequence[TopicName]
    ) -> list[tuple[TopicName, Any]]:
        replies = await self._ask(request, names, "GET", f"{_T}/stats")
        return [(name, check(reply).json()) for name, reply in replies]

    async def _stats(self, request: Request, name: TopicName, count: int) -> Any:
        answer: dict[str, Any] = {}
        by_partition = {}
        for part, stats in await self._stats_of(request, _parts(name, count)):
            by_partition[str(part)] = stats
            answer = merged_stats([answer, stats])
        answer["metadata"] = self._metadata(name)
        answer["partitions"] = by_partition if flag(request, "perPartition", default=True) else {}
        return answer

    async def _internal_stats(self, request: Request, name: TopicName, count: int) -> Any:
        replies = await self._ask(request, _parts(name, count), "GET", f"{_T}/internalStats")
        return {"metadata": self._metadata(name), "partitions": _joined_by_name(replies)}

    def _metadata(self, name: TopicName) -> dict[str, Any]:
        tenants = self._topics.tenants
        return partitioned_metadata(tenants.partitions(name), tenants.partitioned_properties(name))

    # --- adding partitions, and deleting the topic

    async def _grow(self, request: Request, name: TopicName, count: int) -> Any:
        """When this returns, all partitions have the subscriptions of the first."""
        body = await read_json(request)
        wanted = body.get("partitions") if isinstance(body, dict) else body
        if type(wanted) is not int:
            raise HTTPException(406, "The body must be the number of partitions")
        await self._topics.partitioned.declare(name, wanted)
        first, *rest = _parts(name, wanted)
        replies = await self._ask(request, [first], "GET", f"{_T}/stats", {})
        there = check(replies[0][1]).json()["subscriptions"]
        for subscription, stats in there.items():
            if not stats.get("isDurable", True):
                continue
            properties = stats.get("subscriptionProperties", {})
            start = {"ledgerId": EARLIEST[0], "entryId": EARLIEST[1], "properties": properties}
            named = {"subscription": subscription}
            for _, reply in await self._ask(request, rest, "PUT", _S, {}, start, **named):
                if reply.status != _CONFLICT:  # the partition has the subscription
                    check(reply)

    async def _delete(self, request: Request, name: TopicName, count: int) -> Any:
        """May be repeated. Once this has begun, no broker creates a partition, and if it is
        interrupted, brokers finish it (`cluster/finishing.py`).
        """
        tenants = self._topics.tenants
        if tenants.doomed_partitions(name):
            await self._delete_doomed(request, name)
        elif not continues(request):  # otherwise it has been finished meanwhile
            await self._topics.ownership.refreshed()  # it may just have been made scalable
            self._topics.check_not_migrated(name)
            if not flag(request, "force"):
                await self._check_unused(request, name)
            await self.delete(request, name)

    async def _check_unused(self, request: Request, name: TopicName) -> None:
        """Raises HTTPException if the topic has connected clients."""
        names = _parts(name, self._topics.tenants.partitions(name))
        for part, stats in await self._stats_of(request, names):
            used = any(each["consumers"] for each in stats["subscriptions"].values())
            if stats["publishers"] or used:
                raise HTTPException(
                    _IN_USE,
                    f"{part} has connected producers or consumers; close them or use force",
                )

    async def delete(
        self, request: Request, name: TopicName, only_while: KeyAt | None = None
    ) -> None:
        """Deletes all partitions, then the topic, even if it is in use. Raises TopicNotFound,
        HTTPException; BadVersion if the condition does not hold.
        """
        try:
            await self._topics.partitioned.doom(name, only_while)
        except BadVersion:  # another broker has just changed the record
            await self._topics.ownership.refreshed()
            await self._topics.partitioned.doom(name, only_while)
        await self._delete_doomed(request, name)

    async def _delete_doomed(self, request: Request, name: TopicName) -> None:
        """It has been decided: clients that came since then are disconnected."""
        tenants = self._topics.tenants
        names = _parts(name, tenants.doomed_partitions(name))
        forced = {"force": "true", ONLY_DOOMED: "true"}
        for _, reply in await self._ask(request, names, *DELETION, forced):
            if reply.status != _NOT_FOUND:
                check(reply)
        await self._topics.ownership.refreshed()  # learn what other brokers have deleted
        if (doom := tenants.doom_of(name)) is None:
            return  # another request has finished it
        try:
            await self._topics.delete_partitioned(name, force=True)
        except BadVersion:
            await self._topics.ownership.refreshed()
            if tenants.doom_of(name) == doom:
                raise


def _parts(name: TopicName, count: int) -> list[TopicName]:
    return [name.partition_at(index) for index in range(count)]


# --- joining the partitions' answers


def _done(replies: Replies) -> None:
    for _, reply in replies:
        check(reply)


def _found(replies: Replies) -> None:
    """Refuses with "not found" only if no partition has the subscription."""
    _done([each for each in replies if each[1].status != _NOT_FOUND] or replies)


def _created(replies: Replies) -> None:
    """Refuses with a conflict only if all partitions have the subscription."""
    _done([each for each in replies if each[1].status != _CONFLICT] or replies)


def _first(replies: Replies) -> Any:
    return next((r.json() for _, r in replies if r.is_done), None) or check(replies[0][1]).json()


def _joined(replies: Replies) -> dict[str, Any]:
    _found(replies)
    joined: dict[str, Any] = {}
    for _, reply in replies:
        if reply.is_done:
            joined |= reply.json()
    return joined


def _joined_by_name(replies: Replies) -> dict[str, Any]:
    return {str(name): check(reply).json() for name, reply in replies}


def _united(replies: Replies) -> list[str]:
    return sorted({each for _, reply in replies for each in check(reply).json()})


def _infos(replies: Replies) -> dict[str, Any]:
    return {"version": 0, "partitions": _joined_by_name(replies)}


def _process(replies: Replies) -> dict[str, Any]:
    found = [check(reply).json() for _, reply in replies]
    telling = [status.value for status in TELLING]
    worst: dict[str, Any] = min(found, key=lambda each: telling.index(each["status"]))
    return worst


def _by_number(replies: Replies) -> dict[str, Any]:
    return {str(name.partition): check(reply).json() for name, reply in replies}
