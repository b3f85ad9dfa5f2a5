"""Uses the WebSocket API as Apache Pulsar's examples in Python do: through websocket-client."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import websocket

from pybroker.testing import RunningBroker

TIMEOUT_S = 30


def url_of(broker: RunningBroker, path: str) -> str:
    return f"ws{broker.admin_url.removeprefix('http')}/ws/{path}"


@contextmanager
def connected(broker: RunningBroker, path: str, **options: Any) -> Iterator[websocket.WebSocket]:
    """A WebSocket at `path` below /ws/."""
    ws = websocket.create_connection(url_of(broker, path), timeout=TIMEOUT_S, **options)
    try:
        yield ws
    finally:
        ws.close()


def refusal(broker: RunningBroker, path: str, **options: Any) -> tuple[int, str]:
    """The status and the reason with which a connection is refused."""
    try:
        with connected(broker, path, **options):
            raise AssertionError(f"{path} was not refused")
    except websocket.WebSocketBadStatusException as refused:
        body = refused.resp_body
        return refused.status_code, json.loads(body)["reason"] if body else ""


def encoded(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def publish(ws: websocket.WebSocket, payload: bytes, **more: Any) -> dict[str, Any]:
    """The receipt."""
    ws.send(json.dumps({"payload": encoded(payload), **more}))
    return hear(ws)


def hear(ws: websocket.WebSocket) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(ws.recv())
    return said


def payload_of(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["payload"])


def say(ws: websocket.WebSocket, **command: Any) -> None:
    ws.send(json.dumps(command))


def receive(ws: websocket.WebSocket) -> bytes:
    """The next message, acknowledged."""
    message = hear(ws)
    say(ws, messageId=message["messageId"])
    return payload_of(message)
