"""What can remain open when a database and a broker commit together."""

from pybroker.client.errors import TransactionOutcomeUnknown


class DatabaseOutcomeUnknown(TransactionOutcomeUnknown):
    """The database did not say whether it has committed, and cannot be asked. Nothing is lost: the
    broker's transaction is prepared, and `recover`, of any process, finds out and follows.

    Do not repeat the work before. The database's error is the `__cause__`.
    """

    def __str__(self) -> str:
        return (
            f"The database did not say whether it has committed. Transaction {self.txn_id} stays "
            "prepared until pybroker.client.database.recover can ask: reconnect and call it, and "
            "do not repeat the work before"
        )


class CommitPending(TransactionOutcomeUnknown):
    """The database has committed, so both have. But the broker did not confirm within the operation
    timeout: its messages are visible once it, or `recover`, of any process, has ended the
    transaction.

    Do not repeat the work. The broker's error is the `__cause__`.
    """

    def __str__(self) -> str:
        return (
            f"The database has committed, and the broker did not confirm transaction {self.txn_id} "
            "in time: pybroker.client.database.recover commits it there, so do not repeat the work"
        )
