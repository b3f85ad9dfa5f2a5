"""Keys of broker.conf that can be changed while the broker runs: stored, and effective at once.

A stored value overrides the file and the environment, also after a restart, until it is deleted.
The keys with the defaults of policies are dynamic: topics are notified of a change, as they are of
a changed policy. Other keys are read once, at the start.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PulsarError

log = logging.getLogger(__name__)

_RECORD: Final = "/dynamic-configuration"

DYNAMIC: Final = (
    # storage and delivery of messages
    "default_retention_time_in_minutes",
    "default_retention_size_in_mb",
    "ttl_duration_default_in_seconds",
    "backlog_quota_default_limit_bytes",
    "backlog_quota_default_limit_gb",
    "backlog_quota_default_limit_second",
    "backlog_quota_default_retention_policy",
    "broker_service_compaction_threshold_in_bytes",
    "topic_compaction_delete_retention_seconds",
    "delayed_delivery_enabled",
    "delayed_delivery_tick_time_millis",
    "delayed_delivery_max_delay_in_millis",
    "managed_ledger_default_mark_delete_rate_limit",
    "broker_deduplication_enabled",
    "broker_deduplication_snapshot_interval_seconds",
    # transactions
    "max_active_transactions_per_namespace",
    "max_transaction_timeout_ms_per_namespace",
    "max_open_transaction_messages_per_topic",
    "max_open_transaction_bytes_per_topic",
    "max_open_transaction_messages_per_namespace",
    "max_open_transaction_bytes_per_namespace",
    "transaction_abort_on_disconnect",
    "prepare_transaction_roles",
    "max_prepared_transactions_per_principal",
    "transaction_buffer",
    # rates
    "max_publish_rate_per_topic_in_messages",
    "max_publish_rate_per_topic_in_bytes",
    "dispatch_throttling_rate_per_topic_in_msg",
    "dispatch_throttling_rate_per_topic_in_byte",
    "dispatch_throttling_rate_per_subscription_in_msg",
    "dispatch_throttling_rate_per_subscription_in_byte",
    "dispatch_throttling_rate_relative_to_publish_rate",
    "subscribe_throttling_rate_per_consumer",
    "subscribe_rate_period_per_consumer_in_second",
    # limits
    "max_producers_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_subscriptions_per_topic",
    "max_unacked_messages_per_consumer",
    "max_unacked_messages_per_subscription",
    "max_topics_per_namespace",
    # automatic creation and deletion
    "allow_auto_topic_creation",
    "allow_auto_topic_creation_type",
    "default_num_partitions",
    "allow_auto_subscription_creation",
    "broker_delete_inactive_topics_enabled",
    "broker_delete_inactive_topics_mode",
    "broker_delete_inactive_topics_max_inactive_duration_seconds",
    "subscription_expiration_time_minutes",
    # scalable topics
    "scalable_topic_auto_scale_enabled",
    "scalable_topic_max_segments",
    "scalable_topic_min_segments",
    "scalable_topic_entry_bucket_budget",
    "scalable_topic_entry_bucket_max_per_segment",
    "scalable_topic_rebucket_cooldown_seconds",
    "scalable_topic_max_dag_depth",
    "scalable_topic_split_cooldown_seconds",
    "scalable_topic_split_vs_rebucket_min_msg_rate_in_threshold",
    "scalable_topic_split_msg_rate_in_threshold",
    "scalable_topic_split_bytes_rate_in_threshold",
    "scalable_topic_split_msg_rate_out_threshold",
    "scalable_topic_split_bytes_rate_out_threshold",
    "scalable_topic_merge_cooldown_seconds",
    "scalable_topic_merge_window_seconds",
    "scalable_topic_merge_msg_rate_in_threshold",
    "scalable_topic_merge_bytes_rate_in_threshold",
    "scalable_topic_merge_msg_rate_out_threshold",
    "scalable_topic_merge_bytes_rate_out_threshold",
    # permissions and schemas
    "subscription_types_enabled",
    "encryption_require_on_producer",
    "schema_compatibility_strategy",
    "is_schema_validation_enforced",
    "is_allow_auto_update_schema_enabled",
)


class NotDynamic(PulsarError):
    http_status: ClassVar[int] = 412


class DynamicConfiguration:
    """`config` is the effective configuration."""

    fields: ClassVar = DYNAMIC

    def __init__(
        self,
        metadata: MetadataStore,
        config: BrokerConfig,
        changed: Callable[[BrokerConfig], None],
    ) -> None:
        """`config` is the one at the start; `changed` is called with each new configuration."""
        self._metadata = metadata
        self._given = config
        self._changed = changed
        self._writing = asyncio.Lock()
        self.config = config

    @staticmethod
    def names() -> list[str]:
        """The keys that can be changed, in broker.conf's spelling."""
        return list(_by_name())

    def values(self) -> dict[str, str]:
        """The stored values, by key."""
        stored = self._metadata.get(_RECORD)
        return {} if stored is None else dict(json.loads(stored.value))

    def load(self) -> None:
        """Applies the stored values that this version understands."""
        settings: dict[str, Any] = {}
        for name, text in self.values().items():
            try:
                settings |= _parsed(name, text)
            except NotDynamic as error:
                log.warning("part of the dynamic configuration is ignored: %s", error)
        config = replace(self._given, **settings)
        if config != self.config:
            self.config = config
            self._changed(config)

    def configure(self, given: BrokerConfig) -> None:
        """The file and the environment were reloaded: applies their dynamic keys."""
        again = {field: getattr(given, field) for field in DYNAMIC}
        self._given = replace(self._given, **again)
        self.load()

    async def set(self, name: str, text: str) -> None:
        """Durable and effective when it returns. Raises NotDynamic, also for invalid values."""
        _parsed(name, text)
        await self._store(lambda values: {**values, name: text})

    async def delete(self, name: str) -> None:
        """Removes the stored value, so that the file's applies again. Raises NotDynamic."""
        _field(name)
        await self._store(lambda values: {key: values[key] for key in values if key != name})

    async def _store(self, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        async with self._writing:
            await self._metadata.put(_RECORD, json.dumps(change(self.values())).encode())
            self.load()


@cache
def _by_name() -> Mapping[str, str]:
    """The fields by broker.conf's spelling."""
    from pybroker.base.configuration.config_file import camel_case  # slow to import

    return {camel_case(field): field for field in DYNAMIC}


def _field(name: str) -> str:
    if name not in _by_name():
        raise NotDynamic(
            f"{name[:200]} cannot be changed while the broker runs: set it in the configuration "
            "file and restart (GET /admin/v2/brokers/configuration lists the dynamic keys)"
        )
    return _by_name()[name]


def _parsed(name: str, text: str) -> dict[str, Any]:
    from pybroker.base.configuration.config_file import LEFT_OUT, parse_setting

    field = _field(name)
    try:
        value = parse_setting(f"{name}={text}")[1]
    except ValueError as error:
        raise NotDynamic(str(error)) from None
    if value is LEFT_OUT:
        raise NotDynamic(f"{name} needs a value; use DELETE to remove what was set")
    return {field: value}
