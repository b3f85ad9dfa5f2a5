"""The configs of one topic: read, checked, changed."""

from collections.abc import Mapping
from typing import Final

from pybroker.base.names import TopicName
from pybroker.kafka.configs.kinds import Change, Shown, Source, bad_config, items
from pybroker.kafka.configs.topic_policies import configs_of, policies_of
from pybroker.kafka.configs.topic_table import (
    MAX_MESSAGE_BYTES,
    TOPIC_CONFIGS,
    checked_config,
    checked_configs,
)
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.services import KafkaServices

PREFIX: Final = "kafka."  # in front of a config's name among the topic's properties


def as_properties(configs: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + name: value for name, value in configs.items()}


def kept_configs(services: KafkaServices, topic: TopicName) -> dict[str, str]:
    """What clients of Kafka's have set for a topic, which is no partition."""
    properties = services.topics.tenants.partitioned_properties(topic)
    return {
        name.removeprefix(PREFIX): value
        for name, value in properties.items()
        if name.startswith(PREFIX)
    }


def topic_config(services: KafkaServices, topic: TopicName, name: str) -> str:
    """The value that is in force; `topic` may be a partition."""
    whole = topic.partitioned_name
    now = configs_of(services.topics.policies.of(whole), kept_configs(services, whole))
    return now.get(name, _defaults(services)[name])


def shown_configs(services: KafkaServices, topic: TopicName) -> list[Shown]:
    now = configs_of(services.topics.policies.of(topic), kept_configs(services, topic))
    defaults = _defaults(services)
    return [
        Shown(
            name,
            now.get(name, defaults[name]),
            row.kind,
            Source.TOPIC if name in now else Source.DEFAULT,
            row.effect or "accepted and shown; it has no effect here",
        )
        for name, row in TOPIC_CONFIGS.items()
    ]


def _defaults(services: KafkaServices) -> dict[str, str]:
    most = {MAX_MESSAGE_BYTES: str(services.config.max_message_size)}
    return {name: row.default for name, row in TOPIC_CONFIGS.items()} | most


def changed_configs(
    kept: Mapping[str, str], changes: list[tuple[str, Change, str | None]]
) -> dict[str, str]:
    """The configs after IncrementalAlterConfigs. Raises KafkaError."""
    changed = dict(kept)
    for name, change, value in changes:
        row = TOPIC_CONFIGS.get(name)
        if row is None or change is Change.DELETE:
            checked_configs({name: None})
            changed.pop(name, None)
        elif change is Change.SET:
            changed |= checked_configs({name: value})
        else:
            changed[name] = _merged(name, change, changed.get(name, row.default), value or "")
    return changed


def _merged(name: str, change: Change, now: str, value: str) -> str:
    if TOPIC_CONFIGS[name].kind.name != "LIST":
        raise bad_config(name, value, f"{change.name} is for lists")
    others = [item for item in items(now) if item not in items(value)]
    merged = ",".join(others + items(value) if change is Change.APPEND else others)
    checked_config(name, merged)
    return merged


async def apply_configs(
    services: KafkaServices, topic: TopicName, configs: Mapping[str, str]
) -> None:
    """Make them the topic's configs, in place of those that it had. Durable when this returns.

    Raises KafkaError, PulsarError.
    """
    topics = services.topics
    if not topics.tenants.partitions(topic):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{topic.local} is not a partitioned topic: set its policies with pybroker admin",
        )

    def changed(now: Mapping[str, str]) -> dict[str, str]:
        others = {name: value for name, value in now.items() if not name.startswith(PREFIX)}
        return others | as_properties(configs)

    await topics.partitioned.change_properties(topic, changed)
    await apply_policies(services, topic, configs)


async def apply_policies(
    services: KafkaServices, topic: TopicName, configs: Mapping[str, str]
) -> None:
    for policy, value in policies_of(configs):
        if services.topics.policies.set_of_topic(topic, policy) != value:
            await services.topics.policies.set_for_topic(topic, policy, value)
    await services.topics.following.told()
