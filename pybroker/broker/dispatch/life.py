"""One life: a consumer object of a client, and what that may have been given. See `lives`.

An example: A is given 1 to 10, reconnects, and is given 1 to 10 again: the second pass. It
acknowledges up to 5 in T, and T commits. Its client may still hold 1 to 5 from the first pass, so A
is tainted by T from 1 on.
"""

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import LifeRecord, Place, Reach


class Life:
    """Positions are exclusive bounds: everything unacknowledged before them was given."""

    __slots__ = (
        "asked",
        "before",
        "clear_at",
        "clear_to",
        "consumer_id",
        "consumers",
        "epoch",
        "given_is_known",
        "holds",
        "holds_to",
        "name",
        "number",
        "oldest",
        "plain_is_known",
        "plain_to",
        "plainly",
        "recorded",
        "request_id",
        "stored",
        "taints",
        "twice",
    )

    def __init__(self, number: int, name: str, consumer_id: int, request_id: int) -> None:
        self.number = number
        self.name = name
        self.consumer_id = consumer_id
        self.request_id = request_id  # of its latest SUBSCRIBE
        self.consumers = 0  # connected; two if its previous connection is not known to be dead
        self.before = EARLIEST  # in any earlier pass
        self.twice = EARLIEST  # in two earlier passes
        self.given_is_known = True  # after a crash, these are only bounds
        self.oldest = 0  # when its first pass began of those that it may have something from
        self.taints: dict[TxnId, Place] = {}  # the first message that it may have otherwise
        # The transaction in which it acknowledged cumulatively, up to here.
        self.holds: TxnId | None = None
        self.holds_to: Reach = (EARLIEST, 0)
        # When it did so, it had received every delivery so far of messages before this.
        self.clear_to = EARLIEST
        self.clear_at: float = -1  # and every late delivery until this time
        # Its latest cumulative acknowledgement without a transaction; after a restart only a bound.
        self.plain_to: Reach = (EARLIEST, 0)
        self.plain_is_known = True
        self.plainly = False  # whether there was one
        self.epoch: int | None = -1  # of its latest request for redelivery; None: unknown
        self.asked: int | None = -1  # the same, perhaps before it is followed
        self.stored = False  # whether the pending-ack log has it as it is
        self.recorded = False  # whether the log has it in any form

    def forget(self, now: int) -> None:
        """Its client has dropped what it was given."""
        self.stored = self.stored and not self.taints
        self.before = self.twice = self.clear_to = EARLIEST
        self.oldest, self.holds = now, None
        self.taints.clear()

    def asks_in(self, epoch: int) -> bool:
        """Note the epoch of a request. Returns whether it is new: then it is followed once its
        record is durable. After a crash, the client must not seem to have dropped what it was given
        in it.
        """
        if self.asked is not None and epoch <= self.asked:
            return False
        self.asked, self.stored = epoch, False
        return True

    def begins_epoch(self, epoch: int) -> bool:
        """Note the epoch of a request. Returns whether the client has dropped what it was given
        before it. Source: PIP-84.
        """
        known, self.epoch = self.epoch, epoch if self.epoch is None else max(epoch, self.epoch)
        self.asks_in(epoch)
        return known is not None and epoch > known

    def acknowledges_plainly(self, reach: Reach) -> bool:
        """Cumulatively, up to `reach`. Returns whether the log has to know: it is the first one."""
        self.plain_to, self.plain_is_known = reach, True
        was_known, self.plainly = self.plainly or not self.recorded, True
        self.stored = self.stored and was_known
        return not was_known

    def taint(self, txn_id: TxnId, first: Place) -> None:
        known = self.taints.get(txn_id)
        if known is None or first < known:
            self.taints[txn_id] = first
            self.stored = False

    def tainted_by(self, txn_id: TxnId, reach: Reach) -> TxnId | None:
        """Another transaction that has acknowledged messages up to `reach` of which its client may
        have another delivery.
        """
        for each, (position, index) in self.taints.items():
            if each != txn_id and (position, index) < reach:
                return each
        return None

    def has_something(self, first: Position) -> bool:
        """Whether it may have something unacknowledged from earlier passes, or is tainted."""
        return self.before > first or bool(self.taints)

    @property
    def record(self) -> LifeRecord:
        taints = tuple((txn_id, first) for txn_id, first in self.taints.items())
        return LifeRecord(
            self.number,
            self.name,
            self.consumer_id,
            self.request_id,
            taints,
            plainly=self.plainly,
            epoch=self.asked,
            given=None if self.consumers else (self.before, self.twice),
        )
