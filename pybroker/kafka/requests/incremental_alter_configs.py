"""IncrementalAlterConfigs (KIP-339): single configs of topics and groups, set, removed, extended.

- 1: flexible. Brokers' configs are not changed by Kafka's clients.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pybroker.kafka.configs.group_configs import changed_group_configs
from pybroker.kafka.configs.kinds import Change, Resource
from pybroker.kafka.configs.topic_configs import apply_configs, changed_configs, kept_configs
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_group_admin, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

# The configs that a client has set, and what it asks for → those that are set afterwards.
After = Callable[[Mapping[str, str], list[dict[str, Any]]], dict[str, str]]


class Changes(NamedTuple):
    of_topic: After
    of_group: After


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return await altered(services, session, request, Changes(_after, _group_after))


async def altered(
    services: KafkaServices, session: Session, request: Request, changes: Changes
) -> dict[str, Any]:
    """The response to a request that alters configs."""
    only_check = request["validate_only"]
    return {
        "responses": [
            await _altered(services, session, each, changes, only_check)
            async for each in paced(request["resources"])
        ]
    }


async def _altered(
    services: KafkaServices,
    session: Session,
    asked: dict[str, Any],
    changes: Changes,
    only_check: bool,
) -> dict[str, Any]:
    found = {"resource_type": asked["resource_type"], "resource_name": asked["resource_name"]}
    try:
        await _alter(services, session, asked, changes, only_check)
    except REFUSALS as error:
        return found | error_fields(error)
    return found


async def _alter(
    services: KafkaServices,
    session: Session,
    asked: dict[str, Any],
    changes: Changes,
    only_check: bool,
) -> None:
    if asked["resource_type"] == Resource.GROUP:
        await _alter_group(services, session, asked, changes.of_group, only_check)
        return
    if asked["resource_type"] != Resource.TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "only topics and groups have configs that clients can change: for the broker's use "
            "pybroker admin brokers update-dynamic-config",
        )
    topic = services.names.topic(asked["resource_name"])
    require_topic(services, session, Operation.ALTER_CONFIGS, topic)
    services.topics.check_there(topic)
    configs = changes.of_topic(kept_configs(services, topic), asked["configs"])
    if not only_check:
        await apply_configs(services, topic, configs)


async def _alter_group(
    services: KafkaServices, session: Session, asked: dict[str, Any], after: After, only_check: bool
) -> None:
    group_id, configs = asked["resource_name"], services.group_configs
    require_group_admin(services, session, group_id)
    changed = after(configs.of(group_id), asked["configs"])
    if not only_check:
        await configs.put(group_id, changed)


def _group_after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return changed_group_configs(kept, [_change(each) for each in asked])


def _after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return changed_configs(kept, [_change(each) for each in asked])


def _change(asked: dict[str, Any]) -> tuple[str, Change, str | None]:
    """Raises KafkaError (INVALID_REQUEST) for an unknown operation."""
    if asked["config_operation"] not in list(Change):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there is no operation {asked['config_operation']}"
        )
    return asked["name"], Change(asked["config_operation"]), asked["value"]
