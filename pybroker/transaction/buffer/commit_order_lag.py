"""The lag of a topic: how much older a copied message may be than its place in the log suggests.

Seeking by time needs it. It is a property of the topic's ledger, and is in the journal before the
copy. It doubles when it grows, so it is written rarely.
"""

from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_LAG: Final = "commit-order.lag-ms"
_LEAST_MS: Final = 1024


def lag_ms(ledger: ManagedLedger) -> int:
    """The lag in milliseconds; 0 for a topic that was never in commit order."""
    return int(ledger.properties_to_come.get(_LAG, "0"))


def note_lag(ledger: ManagedLedger, first_entry: bytes, now_ms: int) -> None:
    """Raise the lag if necessary, for a transaction that is about to be copied."""
    try:
        lag = now_ms - parse_metadata(first_entry).publish_time
    except BadEntry:
        return  # not a valid entry: it has no time by which a search could find it
    if lag <= lag_ms(ledger) and _LAG in ledger.properties_to_come:
        return
    doubled = str(1 << max(lag, _LEAST_MS - 1).bit_length())
    try:
        written = ledger.set_property(_LAG, doubled)
    except ManagedLedgerError:
        return  # the copy will fail, too
    # If this fails, the next copy tries again.
    written.add_done_callback(lambda done: done.cancelled() or done.exception())
