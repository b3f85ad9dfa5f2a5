"""Creates a broker's factory of managed ledgers, according to its configuration."""

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import Backend
from managed_ledger.trim import Retention
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.broker.policies.persistence import flush_interval_ms


def ledger_factory(backend: Backend, clock: Clock, config: BrokerConfig) -> ManagedLedgerFactory:
    cursor_writes_per_s = config.managed_ledger_default_mark_delete_rate_limit
    return ManagedLedgerFactory(
        backend,
        clock,
        ManagedLedgerConfig(
            max_entries_per_ledger=config.managed_ledger_max_entries_per_ledger,
            max_size_per_ledger_bytes=config.managed_ledger_max_size_per_ledger_mbytes * 1024**2,
            min_rollover_time_ms=config.managed_ledger_min_ledger_rollover_time_minutes * 60_000,
            max_rollover_time_ms=config.managed_ledger_max_ledger_rollover_time_minutes * 60_000,
            retention=_retention(config),
            cursor_flush_interval_ms=flush_interval_ms(cursor_writes_per_s),
        ),
    )


def _retention(config: BrokerConfig) -> Retention:
    minutes, megabytes = (
        config.default_retention_time_in_minutes,
        config.default_retention_size_in_mb,
    )
    return Retention(
        time_ms=minutes * 60_000 if minutes >= 0 else -1,
        size_bytes=megabytes * 1024**2 if megabytes >= 0 else -1,
    )
