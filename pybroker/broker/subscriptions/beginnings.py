"""Where a subscription that begins at the end, or moves there, goes on: before the first message
that it may not read yet.

So it gets all of every transaction that is still open, not only what is sent from now on; and with
it the messages in between that others have read already. Without open transactions it is the end.

Differs: Apache Pulsar goes to the end of the log. Source: KIP-98; Kafka's read_committed consumers
go to the last stable offset.
"""

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.broker.dispatch.entry_reader import ReadableTopic
from pybroker.broker.subscriptions.isolation import Isolation


def begin_after(topic: ReadableTopic, start: Position | None, level: Isolation) -> Position | None:
    """The mark-delete position of a new cursor that shall begin after `start`; None: at the end. A
    place within the log is taken as it was named. Nothing may be awaited before the cursor exists.
    """
    if start is not None and start < topic.ledger.last_confirmed:
        return start
    if level is Isolation.READ_UNCOMMITTED:
        limit = topic.max_uncommitted_position
    else:
        limit = topic.max_read_position
    return limit if limit < topic.ledger.last_confirmed else start


def next_after_seek(ledger: ManagedLedger, position: Position, limit: Position) -> Position:
    """The first position to deliver. `limit` is the last one that may be delivered now. A place
    within the log is taken as it was named.
    """
    return position if position <= ledger.last_confirmed else min(position, limit.after)
