"""Receiving over HTTP, by long poll: the part of PIP-64 that Apache Pulsar does not have."""

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.http.hanging_up import unless_gone
from pybroker.admin.http.visiting import answered_by_client, visitor_of
from pybroker.admin.operation import JSON, MUCH_BYTES, Body, DescribedRoute
from pybroker.admin.routes.transacting import parsed_txn
from pybroker.admin.routing import read_object, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import receiving as shapes
from pybroker.base.json_schema import Schema

if TYPE_CHECKING:
    from pybroker.gateway.receivers import Receivers, Source, Wanted
    from pybroker.gateway.visitor import Visitor

_SUBSCRIPTION: Final = (
    "/topics/{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:form}"
    "/subscriptions/{subscription:form}"
)
_USUAL: Final = {
    "maxMessages": 10,
    "maxBytes": shapes.MOST_BYTES,
    "waitMs": 10_000,
    "visibilityMs": 30_000,
}
_REFUSES: Final = (405, 409, 412, 429)


class ReceivingRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[DescribedRoute]:
        def post(path: str, handler: Any, body: Body, answer: Schema | None) -> DescribedRoute:
            answers = {} if answer is None else {"answers": answer}
            return route(
                "POST",
                f"{_SUBSCRIPTION}/{path}",
                handler,
                body=body,
                refuses=_REFUSES,
                changes=False,  # messages are not audited
                **answers,
            )

        ids, given = (
            Body(schema, most_bytes=MUCH_BYTES) for schema in (shapes.ACKNOWLEDGE, shapes.GIVE_BACK)
        )
        return [
            post("receive", self.receive, Body(shapes.RECEIVE, required=False), shapes.RECEIVED),
            post("acknowledge", self.acknowledge, ids, None),
            post("negativeAcknowledge", self.give_back, given, None),
            route(
                "DELETE",
                f"{_SUBSCRIPTION}/receiver",
                self.end,
                refuses=_REFUSES,
                changes=False,
            ),
        ]

    async def receive(self, request: Request) -> Response:
        """Receive messages of a subscription, which is created if necessary. Waits up to `waitMs`
        (10,000) for the first, and returns at most `maxMessages` (10). Each comes again after
        `visibilityMs` (30,000) unless it is acknowledged.
        """
        body, visitor = await read_object(request), visitor_of(request)
        receivers = (await self._services.gateway()).receivers

        async def poll() -> bytes:
            from pybroker.gateway.received_json import answer_of

            with answered_by_client():
                async with receivers.receiver(
                    visitor, _source(request, body), _begins(body)
                ) as receiver:
                    return await answer_of(await receiver.poll(_wanted(body), receivers.polls))

        return Response(await unless_gone(request.receive, poll()), media_type=JSON)

    async def acknowledge(self, request: Request) -> None:
        """Acknowledge messages by their ids; with `txn`, as a part of that transaction. The
        subscription must exist.
        """
        body, visitor = await read_object(request), visitor_of(request)
        txn_id = None if body.get("txn") is None else parsed_txn(body["txn"])
        receivers = (await self._services.gateway()).receivers
        with answered_by_client():
            source = _received_from(receivers, visitor, request, body)
            async with receivers.receiver(visitor, source) as receiver:
                await receiver.acknowledge(body["messageIds"], txn_id)

    async def give_back(self, request: Request) -> None:
        """Give messages back, by their ids: they come again now. The subscription must exist."""
        body, visitor = await read_object(request), visitor_of(request)
        receivers = (await self._services.gateway()).receivers
        with answered_by_client():
            source = _received_from(receivers, visitor, request, body)
            async with receivers.receiver(visitor, source) as receiver:
                receiver.give_back(body["messageIds"])

    async def end(self, request: Request) -> None:
        """End receiving: messages that were got and not acknowledged come again now."""
        topic, subscription = str(topic_of(request)), request.path_params["subscription"]
        receivers = (await self._services.gateway()).receivers
        await receivers.end(visitor_of(request), topic, subscription)


def _source(request: Request, body: dict[str, Any]) -> "Source":
    from pybroker.gateway.receivers import USUAL_TYPE, Source

    subscription: str = request.path_params["subscription"]
    return Source(str(topic_of(request)), subscription, body.get("subscriptionType") or USUAL_TYPE)


def _received_from(
    receivers: "Receivers", visitor: "Visitor", request: Request, body: dict[str, Any]
) -> "Source":
    """Whoever acknowledges need not say again of which type the subscription is."""
    if body.get("subscriptionType"):
        return _source(request, body)
    subscription: str = request.path_params["subscription"]
    return receivers.received_from(visitor, str(topic_of(request)), subscription)


def _begins(body: dict[str, Any]) -> str:
    """Where a new subscription begins."""
    begins: str = body.get("subscriptionInitialPosition") or "Latest"
    return begins


def _wanted(body: dict[str, Any]) -> "Wanted":
    from pybroker.gateway.receivers import Wanted

    said = _USUAL | {name: value for name, value in body.items() if value is not None}
    return Wanted(
        messages=said["maxMessages"],
        size_bytes=said["maxBytes"],
        wait_s=said["waitMs"] / 1000,
        visible_again_s=said["visibilityMs"] / 1000,
    )
