"""AlterConfigs: all configs of a topic or a group are replaced; others get their defaults.

- 2: flexible. Newer clients send IncrementalAlterConfigs.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.configs.group_configs import changed_group_configs
from pybroker.kafka.configs.kinds import Change
from pybroker.kafka.configs.topic_table import checked_configs
from pybroker.kafka.requests.incremental_alter_configs import Changes, altered
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return await altered(services, session, request, Changes(_after, _group_after))


def _after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return checked_configs({each["name"]: each["value"] for each in asked})


def _group_after(kept: Mapping[str, str], asked: list[dict[str, Any]]) -> dict[str, str]:
    return changed_group_configs({}, [(each["name"], Change.SET, each["value"]) for each in asked])
