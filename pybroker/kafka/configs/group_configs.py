"""The configs of groups: those of share groups. A record per group, in the metadata store.

They may be set before the group exists, and outlive it, as in Kafka.
"""

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from managed_ledger.storage.backend import MetadataStore
from pybroker.kafka.configs.kinds import Change, Shown, Source, bad_config, check_size
from pybroker.kafka.configs.topic_table import TopicConfig, choice, number
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.shares.share_configs import (
    AUTO_OFFSET_RESET,
    DELIVERY_COUNT_LIMIT,
    ISOLATION_LEVEL,
    MAX_RECORD_LOCKS,
    RECORD_LOCK_DURATION_MS,
)

PREFIX: Final = "/kafka/group-configs/"
GROUP_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    row.name: row
    for row in (
        choice(
            AUTO_OFFSET_RESET,
            "latest",
            "earliest",
            "latest",
            effect="where the group's subscription of a topic begins",
        ),
        number(DELIVERY_COUNT_LIMIT, 5, 2, 10, "then a record is given up"),
        choice(
            ISOLATION_LEVEL,
            "read_committed",
            "read_committed",
            "read_uncommitted",
            effect="of subscriptions that the group begins afterwards",
        ),
        number(MAX_RECORD_LOCKS, 2_000, 100, 10_000, "of a member on a partition"),
        number(RECORD_LOCK_DURATION_MS, 30_000, 15_000, 60_000, "then a record comes again"),
    )
}


class GroupConfigs:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def groups(self) -> list[str]:
        """Those with configs of their own."""
        return sorted(unquote(each.removeprefix(PREFIX)) for each in self._metadata.keys(PREFIX))

    def of(self, group_id: str) -> Mapping[str, str]:
        """What is set for the group."""
        stored = self._metadata.get(_key(group_id))
        configs: dict[str, str] = {} if stored is None else json.loads(stored.value)
        return configs

    def shown(self, group_id: str) -> list[Shown]:
        now = self.of(group_id)
        return [
            Shown(
                name,
                now.get(name, row.default),
                row.kind,
                Source.GROUP if name in now else Source.DEFAULT,
                row.effect,
            )
            for name, row in GROUP_CONFIGS.items()
        ]

    async def put(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replaces what is set. Durable when this returns."""
        if configs:
            await self._metadata.put(_key(group_id), json.dumps(dict(configs)).encode())
        elif self._metadata.get(_key(group_id)) is not None:
            await self._metadata.delete(_key(group_id))


def _key(group_id: str) -> str:
    return PREFIX + quote(group_id, safe="")


def changed_group_configs(
    kept: Mapping[str, str], changes: list[tuple[str, Change, str | None]]
) -> dict[str, str]:
    """The configs after IncrementalAlterConfigs. Raises KafkaError, INVALID_CONFIG."""
    changed = dict(kept)
    for name, change, value in changes:
        row = GROUP_CONFIGS.get(name)
        if row is None:
            known = ", ".join(GROUP_CONFIGS)
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Unknown group config name: {name[:200]}. Known are {known}",
            )
        if change is Change.DELETE or value is None:
            changed.pop(name, None)
            continue
        check_size(name, value)
        if change is not Change.SET or not row.check(value):
            raise bad_config(name, value, row.wanted)
        changed[name] = value
    return changed
