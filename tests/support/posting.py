"""Messages posted to /topics, and how clients receive them."""

import base64
import json
from typing import Any

import httpx

from pybroker.client import Client, InitialPosition, Message

P = "/admin/v2/persistent"


def schema(kind: str, definition: Any = "", **more: Any) -> str:
    text = json.dumps(definition) if definition else ""
    return json.dumps({"type": kind, "schema": base64.b64encode(text.encode()).decode()} | more)


def post(
    admin: httpx.Client, topic: str, *messages: Any, path: str = "", **body: Any
) -> httpx.Response:
    return admin.post(
        f"/topics/persistent/{topic}{path}", json={"messages": list(messages), **body}
    )


def sent(admin: httpx.Client, topic: str, *messages: Any, **body: Any) -> list[dict[str, Any]]:
    answer = post(admin, topic, *messages, **body)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["messagePublishResults"]
    return results


def codes(results: list[dict[str, Any]]) -> list[int]:
    return [result["errorCode"] for result in results]


def received(client: Client, topic: str, count: int) -> list[Message]:
    consumer = client.subscribe(
        f"persistent://{topic}", "all", initial_position=InitialPosition.Earliest
    )
    found = [consumer.receive(30_000) for _ in range(count)]
    consumer.close()
    return found


def set_policy(admin: httpx.Client, namespace: str, policy: str, value: Any) -> None:
    answer = admin.post(f"/admin/v2/namespaces/{namespace}/{policy}", json=value)
    assert answer.status_code == 204, answer.text


def publishers(admin: httpx.Client, topic: str) -> list[Any]:
    found: list[Any] = admin.get(f"{P}/{topic}/stats").json()["publishers"]
    return found
