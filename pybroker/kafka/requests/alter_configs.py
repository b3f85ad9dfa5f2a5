"""AlterConfigs: all configs of a topic are replaced; those that are not named get their defaults.

- 2: flexible. Newer clients send IncrementalAlterConfigs.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.configs.topic_table import checked_configs
from pybroker.kafka.requests.incremental_alter_configs import altered
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return await altered(services, session, request, _after)


def _after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return checked_configs({each["name"]: each["value"] for each in asked})
