"""Apache Pulsar's WebSocket API: requests that become WebSockets.

A request is authenticated and permitted like every other, and the producer or consumer is opened
before it is answered. So a refusal is an HTTP answer with its reason. What follows is in
`pybroker.gateway.websocket`.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.http.answer_memory import ROOM, Room
from pybroker.admin.http.guard import same_origin
from pybroker.admin.http.hanging_up import HANG_UP
from pybroker.admin.http.upgrading import SWITCH, SwitchResponse
from pybroker.admin.http.visiting import answered_by_client, visitor_of
from pybroker.admin.operation import Answer, DescribedRoute
from pybroker.admin.routing import all_asked, asked, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.base.json_schema import TEXT, Schema
from pybroker.base.names import TopicName

if TYPE_CHECKING:
    from pybroker.gateway.clients import VisitorClient
    from pybroker.gateway.gateway import Gateway
    from pybroker.gateway.websocket.channel import Channel
    from pybroker.gateway.websocket.endpoint import Endpoint

_TOPIC: Final = "{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:form}"
_SWITCHED: Final = Answer(status=101)
_REFUSES: Final = (404, 405, 409, 412, 426, 429)
_ANY_ORIGIN: Final = "*"


def _parameters(names: str) -> dict[str, Schema]:
    return dict.fromkeys(names.split(), TEXT)


_PRODUCER: Final = _parameters(
    "token producerName initialSequenceId hashingScheme sendTimeoutMillis batchingEnabled "
    "batchingMaxMessages maxPendingMessages batchingMaxPublishDelay messageRoutingMode "
    "compressionType encryptionKeys"
)
_CONSUMER: Final = _parameters(
    "token ackTimeoutMillis subscriptionType subscriptionMode subscriptionInitialPosition "
    "receiverQueueSize consumerName priorityLevel maxRedeliverCount deadLetterTopic pullMode "
    "negativeAckRedeliveryDelay cryptoFailureAction"
)
_TOPICS: Final = _parameters("topics topicsPattern")
_READER: Final = _parameters("token readerName receiverQueueSize messageId")
_MOST_TOPICS: Final = 1000

New = Callable[["VisitorClient"], "Endpoint"]


class WebSocketRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._config = services.config

    def routes(self) -> list[DescribedRoute]:
        return [
            route("GET", path, handler, _SWITCHED, query=MappingProxyType(query), refuses=_REFUSES)
            for path, handler, query in (
                (f"/ws/v2/producer/{_TOPIC}", self.producer, _PRODUCER),
                (f"/ws/v2/consumer/{_TOPIC}/{{subscription:form}}", self.consumer, _CONSUMER),
                (f"/ws/v2/reader/{_TOPIC}", self.reader, _READER),
                (
                    "/ws/v3/consumer/{subscription:form}",
                    self.multi_topic_consumer,
                    _CONSUMER | _TOPICS,
                ),
            )
        ]

    async def producer(self, request: Request) -> Response:
        """Publish messages through a WebSocket, with a receipt for each."""
        topic = str(topic_of(request))

        def new(client: "VisitorClient") -> "Endpoint":
            from pybroker.gateway.websocket import parameters
            from pybroker.gateway.websocket.producer import ProducerEndpoint

            options = parameters.producer_options(all_asked(request))
            return ProducerEndpoint(client, topic, options, self._services.clock)

        return await self._switched(request, new)

    async def consumer(self, request: Request) -> Response:
        """Receive and acknowledge the messages of a subscription through a WebSocket."""
        return await self._consumer(request, [str(topic_of(request))])

    async def multi_topic_consumer(self, request: Request) -> Response:
        """As the consumer of one topic, for the ?topics= of a list, or those that match a
        ?topicsPattern=.
        """
        topics, pattern = asked(request, "topics"), asked(request, "topicsPattern")
        if (topics is None) is (pattern is None):
            raise HTTPException(400, "Set either topics or topicsPattern")
        if topics is None:
            return await self._consumer(request, pattern or "")
        names = topics.split(",")
        if len(names) > _MOST_TOPICS:
            raise HTTPException(400, f"topics may name at most {_MOST_TOPICS} topics")
        return await self._consumer(request, [str(TopicName.parse(name)) for name in names])

    async def _consumer(self, request: Request, topics: list[str] | str) -> Response:
        subscription: str = request.path_params["subscription"]
        topic = topics if isinstance(topics, str) else topics[0]

        def new(client: "VisitorClient") -> "Endpoint":
            from pybroker.gateway.websocket import parameters
            from pybroker.gateway.websocket.consumer import ConsumerEndpoint

            found = parameters.consumer_parameters(all_asked(request), topic, subscription)
            return ConsumerEndpoint(client, topics, subscription, found)

        return await self._switched(request, new)

    async def reader(self, request: Request) -> Response:
        """Read a topic through a WebSocket, from ?messageId= on, without a subscription."""
        topic = str(topic_of(request))

        def new(client: "VisitorClient") -> "Endpoint":
            from pybroker.gateway.websocket import parameters
            from pybroker.gateway.websocket.consumer import ReaderEndpoint

            return ReaderEndpoint(client, topic, parameters.reader_parameters(all_asked(request)))

        return await self._switched(request, new)

    # -- what all have in common

    async def _switched(self, request: Request, new: New) -> Response:
        """Opens the endpoint, then lets the connection become its WebSocket."""
        self._check(request)
        gateway = await self._services.gateway()
        channel = self._channel(request, gateway)
        client = gateway.new_client(visitor_of(request))

        def give_up() -> None:
            gateway.tasks.start(client.close(), "closing the client of a refused WebSocket")

        try:
            with answered_by_client():
                endpoint = new(client)
                await endpoint.open()
        except BaseException:
            give_up()
            raise
        endpoint.channel = channel
        return SwitchResponse(channel, lambda: gateway.serve(endpoint), give_up)

    def _check(self, request: Request) -> None:
        """Raises HTTPException unless the request asks for a WebSocket, and may have one."""
        if not self._config.web_socket_service_enabled:
            raise HTTPException(404, "WebSockets are switched off (webSocketServiceEnabled=false)")
        self._check_origin(request)
        wanted = request.headers.get("upgrade", "").lower()
        if SWITCH not in request.scope or wanted != "websocket":
            advice = "This is for WebSockets (RFC 6455): connect with ws://"
            raise HTTPException(426, advice, {"upgrade": "websocket"})

    def _channel(self, request: Request, gateway: "Gateway") -> "Channel":
        """Raises HTTPException (400) if the handshake is not that of RFC 6455."""
        from pybroker.gateway.websocket.channel import Channel, Limits, NotAWebSocket

        config = self._config
        limits = Limits(
            config.web_socket_max_text_frame_size,
            config.web_socket_session_idle_timeout_millis / 1000,
            max(0, config.web_socket_ping_duration_seconds),
        )
        headers, path = request.headers.raw, request.scope["raw_path"]
        try:
            channel = Channel(headers, path, limits, gateway.frames)
        except NotAWebSocket as error:
            raise HTTPException(400, f"This is no WebSocket: {error}") from None
        room: Room = request.scope[ROOM]
        channel.room = room.another(request.scope[HANG_UP])
        return channel

    def _check_origin(self, request: Request) -> None:
        """A page of another site must not act with this browser's cookies or network. Raises
        HTTPException.
        """
        allowed = self._config.web_socket_allowed_origins
        if same_origin(request.headers) or _ANY_ORIGIN in allowed:
            return
        if request.headers["origin"] not in allowed:
            raise HTTPException(
                403,
                "The Origin header names another site; list it in webSocketAllowedOrigins if its "
                "pages may connect",
            )
