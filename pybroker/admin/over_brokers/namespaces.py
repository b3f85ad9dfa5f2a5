"""Routes for all topics of a namespace, whose bundles several brokers serve."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.errors import BadVersion
from pybroker.admin.finding import check_empty
from pybroker.admin.operation import Endpoint
from pybroker.admin.over_brokers.asking import (
    DELETION,
    SCALABLE_DELETION,
    Asking,
    all_of,
    continues,
)
from pybroker.admin.over_brokers.everybody import Whole
from pybroker.admin.over_brokers.parts import PartRoutes
from pybroker.admin.replies import check
from pybroker.admin.routing import flag, namespace_of, tenant_of
from pybroker.base.errors import ServiceNotReady, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import ONLY_DOOMED, Bundles, Reply
from pybroker.broker.brokers.ownership import Bundle
from pybroker.broker.namespaces.tenants import Conflict, Mark, NotFound
from pybroker.broker.topics import Topics

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_NOT_FOUND: Final = 404
_DIVISIONS: Final = 10  # during one request
_ATTEMPTS: Final = 3


class NamespaceRoutesOverBrokers:
    def __init__(self, topics: Topics, bundles: Bundles, asking: Asking, parts: PartRoutes) -> None:
        self._topics = topics
        self._bundles = bundles
        self._asking = asking
        self._parts = parts

    def by_route(self) -> dict[tuple[str, str], Whole]:
        return {
            **{
                ("POST", f"{_NAMESPACE}/{path}"): self._on_bundles("POST", path)
                for path in (
                    "clearBacklog",
                    "clearBacklog/{subscription}",
                    "unsubscribe/{subscription}",
                )
            },
            ("PUT", f"{_NAMESPACE}/unload"): self._unload,
            ("DELETE", _NAMESPACE): self._delete,
            ("DELETE", "/admin/v2/tenants/{tenant}"): self._delete_tenant,
        }

    def _on_bundles(self, method: str, path: str) -> Whole:
        """Sends the request to each bundle that has topics."""

        async def with_topics(namespace: str) -> list[Bundle]:
            await self._topics.ownership.refreshed()  # another broker may have just created topics
            names = [TopicName.parse(n) for n in (await self._topics.lists.get(namespace)).names]
            bundles = await self._bundles.of_namespace(namespace)
            return [each for each in bundles if any(map(each.holds, names))]

        async def work(request: Request, own: Endpoint) -> None:
            await self._ask(request, self._namespace(request), with_topics, method, path)

        return work

    async def _unload(self, request: Request, own: Endpoint) -> None:
        """Unloads the served bundles; others stay as they are."""
        await self._unload_served(request, self._namespace(request))

    async def _unload_served(self, request: Request, namespace: str) -> None:
        await self._ask(request, namespace, self._bundles.served_of, "PUT", "unload")

    async def _ask(
        self,
        request: Request,
        namespace: str,
        find: Callable[[str], Awaitable[list[Bundle]]],
        method: str,
        path: str,
    ) -> None:
        """Sends the request to each bundle that `find` returns. If one is split before its broker
        answers, its halves are asked.
        """
        template = f"{_NAMESPACE}/{{bundle}}/{path}"

        async def ask(bundle: Bundle) -> bool:
            try:
                check(await self._asking.bundle(request, bundle, method, template))
            except (HTTPException, ServiceNotReady):
                if bundle in await self._bundles.current(namespace):
                    raise
                return False
            return True

        done: list[Bundle] = []
        for _ in range(_DIVISIONS):
            left = [each for each in await find(namespace) if not any(map(each.is_within, done))]
            answers = [answer async for answer in all_of(left, ask)]
            done += [bundle for bundle, is_done in answers if is_done]
            if len(answers) == sum(is_done for _, is_done in answers):
                return
        raise ServiceNotReady(
            f"bundles of {namespace} keep splitting; retry when they have settled"
        )

    async def _delete(self, request: Request, own: Endpoint) -> None:
        """If this is interrupted, brokers finish it (`cluster/finishing.py`)."""
        tenants, namespace = self._topics.tenants, namespace_of(request)
        force = flag(request, "force")
        if not tenants.marks(namespace):
            if continues(request):
                raise NotFound(f"The deletion of namespace {namespace} has been finished")
            tenants.check_deletable(namespace)
            if not force:
                await check_empty(self._topics, namespace)
        await self._delete_namespace(request, namespace, force)

    async def _delete_tenant(self, request: Request, own: Endpoint) -> Any:
        tenant = tenant_of(request)
        if flag(request, "force"):
            namespaces = self._topics.tenants.namespaces(tenant)
            for namespace in namespaces:
                self._topics.tenants.check_deletable(namespace)
            for namespace in namespaces:
                await self._delete_namespace(request, namespace, force=True)
        return await own(request)

    async def _delete_namespace(self, request: Request, namespace: str, force: bool) -> None:
        """May be repeated. Once this has begun, no broker creates a topic in the namespace, and the
        deletion is given up only if the namespace must be empty and is not.
        """
        tenants = self._topics.tenants
        mark = await tenants.mark_going(namespace, force)
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                await self._carry_out(request, namespace, mark)
                return
            except BadVersion:  # another request deletes the same
                await self._refreshed(namespace, mark)
                if not attempts_left:
                    raise

    async def _carry_out(self, request: Request, namespace: str, mark: Mark) -> None:
        """Deletes the topics, then the namespace's records, and the mark last. Raises NotFound or
        BadVersion if another request has finished the deletion.
        """
        tenants = self._topics.tenants
        if tenants.has_namespace(namespace):
            await self._delete_topics(request, namespace, mark)
            await self._topics.schemas.forget_namespace(namespace, only_while=mark.at)
            await tenants.delete_namespace(namespace, only_while=mark.at)
        await self._refreshed(namespace, mark)
        await self._bundles.forget(namespace, only_while=mark.at)
        await tenants.unmark(namespace, forced_too=True, own=mark)

    async def _delete_topics(self, request: Request, namespace: str, mark: Mark) -> None:
        topics = self._topics
        await topics.at_rest(namespace)
        # A broker that was creating a topic has finished when it gives the bundle back. A broker
        # that takes the bundle from now on knows that the namespace is being deleted.
        await self._unload_served(request, namespace)
        if not mark.forced:
            await self._check_still_empty(namespace, mark)
        await self._refreshed(namespace, mark)
        # First of all: they take along what they were made of, which nobody can delete otherwise.
        scalable = topics.tenants.scalable_topics(namespace)
        await self._delete_each(request, scalable, SCALABLE_DELETION)
        await self._refreshed(namespace, mark)
        for name in topics.tenants.partitioned_topics(namespace):
            with suppress(TopicNotFound):  # another request has deleted it
                await self._parts.delete(request, name, only_while=mark.at)
        names = [TopicName.parse(n) for n in (await topics.lists.get(namespace)).names]
        await self._delete_each(request, names, DELETION)
        await self._refreshed(namespace, mark)

    async def _delete_each(
        self, request: Request, names: list[TopicName], deletion: tuple[str, str]
    ) -> None:
        forced = {"force": "true", ONLY_DOOMED: "true"}

        async def delete(name: TopicName) -> Reply:
            return await self._asking.topic(request, name, *deletion, forced)

        async for _, reply in all_of(names, delete):
            if reply.status != _NOT_FOUND:
                check(reply)

    async def _check_still_empty(self, namespace: str, mark: Mark) -> None:
        """Raises Conflict if the namespace has topics; then the deletion has ended."""
        await self._topics.ownership.refreshed()
        try:
            await check_empty(self._topics, namespace)
        except Conflict:
            await self._topics.tenants.unmark(namespace, forced_too=False, own=mark)
            raise

    async def _refreshed(self, namespace: str, mark: Mark) -> None:
        """Learns what other brokers have deleted. Raises NotFound if they have finished."""
        await self._topics.ownership.refreshed()
        self._topics.tenants.check_marked(namespace, mark)

    def _namespace(self, request: Request) -> str:
        namespace = namespace_of(request)
        self._topics.tenants.check_namespace(namespace)
        return namespace
