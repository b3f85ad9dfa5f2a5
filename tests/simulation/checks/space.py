"""What a broker at rest keeps without need."""

from typing import Final

from sim_broker import BrokerProcess

from managed_ledger.ledger_metadata import LEDGERS_PREFIX, LedgerList
from managed_ledger.storage.embedded.ledger_files import FOLDER, ledger_file_name
from managed_ledger.trim import consumed
from pybroker.process.app import Broker

UNTIL_UNLINKED_S: Final = 5.0


def leftovers(process: BrokerProcess) -> list[str]:
    """Leftovers of the broker at rest, except for those that a current trim is about to delete."""
    if not _leftovers(process):
        return []
    process.world.sleep(UNTIL_UNLINKED_S)
    return _leftovers(process)


def _leftovers(process: BrokerProcess) -> list[str]:
    """Ledgers and files without a managed ledger, and unfinished deletions."""
    assert process.broker is not None
    metadata = process.broker._backend.metadata
    known: dict[str, None] = {}
    found = []
    for key in metadata.keys(LEDGERS_PREFIX):
        stored = metadata.get(key)
        assert stored is not None
        record = LedgerList.decode(stored.value, key)
        known.update((ledger_file_name(info.ledger_id), None) for info in record.ledgers)
        if record.deleted:
            found.append(f"DELETION LEFT UNFINISHED: {key}")
    for ledger_id in process.broker._backend.ledger_ids():
        if ledger_file_name(ledger_id) not in known:
            found.append(f"LEDGER LEFT: {ledger_id} belongs to nothing")
    files = [name for name in process.disk.names if name.startswith(f"{FOLDER}/")]
    found += [f"FILE LEFT: {name}" for name in sorted(files) if name not in known]
    return found


def not_trimmed(process: BrokerProcess) -> list[str]:
    """Ledgers that remain although all durable cursors have consumed them, retention is over, and
    housekeeping had time to run.
    """
    assert process.broker is not None and process.node is not None
    # On the broker's node, because a check of what is needed may start to free it.
    return process.world.call(process.node, _not_trimmed(process.broker))


async def _not_trimmed(broker: Broker) -> list[str]:
    found = []
    for topic in broker.topics.loaded():
        cursors = [c for c in topic.ledger.cursors.values() if c.durable]
        needed = [cursor.mark_delete_position for cursor in cursors]
        needed += [kept_from().before for kept_from in topic.ledger.trimmer.kept_from]
        slowest = min(needed, default=None)
        for info in topic.ledger.ledgers():
            if info.closed_at_ms is not None and consumed(info, slowest):
                found.append(f"KEPT: ledger {info.ledger_id} of {topic.name} is consumed")
    return found
