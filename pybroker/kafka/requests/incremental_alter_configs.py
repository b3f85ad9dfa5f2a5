"""IncrementalAlterConfigs (KIP-339): single configs of topics, set, removed, or extended.

- 1: flexible. Brokers' configs are not changed by Kafka's clients.
"""

from collections.abc import Callable, Mapping
from typing import Any

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError
from pybroker.kafka.configs.kinds import Change, Resource
from pybroker.kafka.configs.topic_configs import apply_configs, changed_configs, kept_configs
from pybroker.kafka.errors import ErrorCode, KafkaError, error_code, error_message
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

# The configs that a client has set, and what it asks for → those that are set afterwards.
After = Callable[[Mapping[str, str], list[dict[str, Any]]], dict[str, str]]


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return await altered(services, session, request, _after)


async def altered(
    services: KafkaServices, session: Session, request: Request, after: After
) -> dict[str, Any]:
    """The response to a request that alters configs."""
    only_check = request["validate_only"]
    return {
        "responses": [
            await _altered(services, session, each, after, only_check)
            async for each in paced(request["resources"])
        ]
    }


async def _altered(
    services: KafkaServices,
    session: Session,
    asked: dict[str, Any],
    after: After,
    only_check: bool,
) -> dict[str, Any]:
    found = {"resource_type": asked["resource_type"], "resource_name": asked["resource_name"]}
    try:
        await _alter(services, session, asked, after, only_check)
    except (KafkaError, PulsarError, ManagedLedgerError) as error:
        return found | {"error_code": error_code(error), "error_message": error_message(error)}
    return found


async def _alter(
    services: KafkaServices,
    session: Session,
    asked: dict[str, Any],
    after: After,
    only_check: bool,
) -> None:
    if asked["resource_type"] != Resource.TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "only topics have configs that clients can change: for the broker's use "
            "pybroker admin brokers update-dynamic-config",
        )
    topic = services.names.topic(asked["resource_name"])
    require_topic(services, session, Operation.ALTER_CONFIGS, topic)
    services.topics.check_there(topic)
    configs = after(kept_configs(services, topic), asked["configs"])
    if not only_check:
        await apply_configs(services, topic, configs)


def _after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return changed_configs(kept, [_change(each) for each in asked])


def _change(asked: dict[str, Any]) -> tuple[str, Change, str | None]:
    """Raises KafkaError (INVALID_REQUEST) for an unknown operation."""
    if asked["config_operation"] not in list(Change):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there is no operation {asked['config_operation']}"
        )
    return asked["name"], Change(asked["config_operation"]), asked["value"]
