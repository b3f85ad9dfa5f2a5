"""DescribeConfigs: of topics, groups, and of this broker.

- 1: the source of a value, and synonyms; 3: its type and its documentation (KIP-569).
"""

from collections.abc import Iterable
from typing import Any

from pybroker.base.errors import PulsarError
from pybroker.kafka.configs.broker_configs import broker_configs
from pybroker.kafka.configs.kinds import Resource, Shown, Source
from pybroker.kafka.configs.topic_configs import shown_configs
from pybroker.kafka.errors import ErrorCode, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_admin, require_group, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    asked = _once(request["resources"])
    return {"results": [_described(services, session, each) async for each in paced(asked)]}


def _once(resources: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Each resource once: an answer is a hundred times as long as its question."""
    return {(each["resource_type"], each["resource_name"]): each for each in resources}.values()


def _described(services: KafkaServices, session: Session, asked: dict[str, Any]) -> dict[str, Any]:
    found = {"resource_type": asked["resource_type"], "resource_name": asked["resource_name"]}
    wanted = asked["configuration_keys"]
    try:
        configs = _configs(services, session, asked["resource_type"], asked["resource_name"])
    except (KafkaError, PulsarError) as error:
        return found | error_fields(error)
    chosen = [each for each in configs if wanted is None or each.name in wanted]
    return found | {"configs": [shown_config(each) for each in chosen]}


def _configs(services: KafkaServices, session: Session, kind: int, name: str) -> Iterable[Shown]:
    """Raises KafkaError for an unknown `kind`, PulsarError if `name` does not exist or may not be
    seen.
    """
    if kind == Resource.TOPIC:
        topic = services.names.topic(name)
        require_topic(services, session, Operation.DESCRIBE_CONFIGS, topic)
        services.topics.check_there(topic)
        return shown_configs(services, topic)
    if kind == Resource.BROKER:
        require_admin(services, session, "DescribeConfigs of a broker")
        check_own(services, name)
        return broker_configs(services.config, services.nodes.own_id) if name else ()
    if kind == Resource.GROUP:
        require_group(services, session, name)
        return services.group_configs.shown(name)
    if kind in (Resource.CLIENT_METRICS, Resource.BROKER_LOGGER):
        return ()
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"there are no configs of the type {kind}")


def check_own(services: KafkaServices, name: str) -> None:
    """A broker describes itself; no name stands for the defaults of all. Raises KafkaError."""
    if name not in ("", str(services.nodes.own_id)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {services.nodes.own_id}: ask broker {name[:20]} itself",
        )


def shown_config(config: Shown) -> dict[str, Any]:
    synonyms = [{"name": config.name, "value": config.value, "source": config.source}]
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source,
        "is_sensitive": False,
        "synonyms": synonyms if config.source is not Source.DEFAULT else [],
        "config_type": config.kind,
        "documentation": config.documentation or None,
    }
