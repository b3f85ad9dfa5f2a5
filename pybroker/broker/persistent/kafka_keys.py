"""Keys of what is stored for the Kafka clients of a topic, beside its log."""

from typing import Final

from managed_ledger.storage.backend import MetadataStore

PRODUCERS: Final = "/kafka-producers/"


def producers_key(ledger_name: str) -> str:
    """The snapshot of the idempotent producers: see pybroker.kafka.log.producer_snapshots."""
    return PRODUCERS + ledger_name


def snapshot_keys(metadata: MetadataStore, ledger_name: str) -> list[str]:
    """The keys of a topic, which need not exist."""
    key = producers_key(ledger_name)
    return [key] if metadata.get(key) is not None else []


def ledgers_with_snapshots(metadata: MetadataStore) -> list[str]:
    return [key.removeprefix(PRODUCERS) for key in metadata.keys(PRODUCERS)]
