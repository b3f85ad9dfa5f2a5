"""One commit of a broker's transaction and a database's. The database decides, because it is asked
last.

    the row of this transaction     INSERT, in the database's own transaction
    PREPARE                         from here on nothing but a decision ends the broker's part
    COMMIT in the database          the decision: the row is there, or never will be
    COMMIT at the broker            the consequence

A crash before PREPARE leaves an open transaction, which times out, and a database that rolls back.
A crash after it leaves a prepared transaction, and `recovery.py` looks whether its row is there.

Source: the last resource of two-phase commit (JTA's "last resource gambit" with a record of the
decision in that resource).
"""

import contextlib
import logging
from typing import Any

from pybroker.base.errors import InvalidTxnStatus
from pybroker.client.database import tables
from pybroker.client.database.connections import Connection, settled
from pybroker.client.database.errors import CommitPending, DatabaseOutcomeUnknown
from pybroker.client.database.recovery import Keeper
from pybroker.client.database.tables import Verdict
from pybroker.client.errors import InvalidConfiguration, PulsarException
from pybroker.client.transactions.transaction import TxnState

log = logging.getLogger(__name__)


class Commit:
    """The end of one block. `txn` is the broker's transaction, of the blocking client or not."""

    def __init__(
        self,
        keeper: Keeper,
        connection: Connection,
        txn: Any,
        database_id: str,
        row_name: str | None = None,
    ) -> None:
        self._keeper = keeper
        self._connection = connection
        self._txn = txn
        self._database_id = database_id
        self._row_name = row_name or tables.new_row_name(txn.txn_id, keeper.rng)
        self._over = list[str]()  # rows of earlier transactions, which this one deletes
        self._has_begun = False

    async def end(self, error: BaseException | None) -> None:
        """Raises what `transaction` promises. `error`: of the block, or of `end(None)`, which an
        interruption may have kept from beginning; otherwise it has done already what is left.
        """
        if error is not None:
            if not self._has_begun:
                await self._give_up(error)
            return
        self._has_begun = True
        if self._txn.state is TxnState.ABORTED:  # by the block itself
            await self._roll_back()
        else:
            await self._commit()

    async def _commit(self) -> None:
        try:
            await self._prepare()
        except BaseException as error:
            self._delete_later()
            await self._give_up(error)
            raise
        try:
            await self._connection.commit()
        except Exception as error:
            self._delete_later()
            await self._find_out(error)
        except BaseException:
            self._keeper.look_again(self._database_id)
            raise
        await self._commit_at_broker()

    def _delete_later(self) -> None:
        self._keeper.finished(self._database_id, self._over)

    async def _prepare(self) -> None:
        if self._txn.state is not TxnState.OPEN:
            raise InvalidTxnStatus(
                f"Transaction {self._txn.txn_id} is {self._txn.state.value}: leave its end to "
                "the block"
            )
        connection = self._connection
        await connection.flush()
        await self._insert_row()
        self._over = self._keeper.take_finished(self._database_id)
        await tables.delete(connection, self._over)
        connection.require_transactions()
        name = tables.prepared_name(self._database_id, self._row_name)
        await settled(self._txn.prepare(name))

    async def _insert_row(self) -> None:
        """Where the block's rows are: that may be another database than at the last time, or
        another schema (SET search_path). Raises InvalidConfiguration.
        """
        for _ in range(2):
            now_ms = self._keeper.clock.now_ms()
            if await tables.insert(
                self._connection, self._database_id, self._row_name, Verdict.COMMITTED, now_ms
            ):
                return
            self._database_id = await self._keeper.look_up(self._connection)
        raise InvalidConfiguration(f"The id {self._database_id} of the database does not stay")

    async def _give_up(self, error: BaseException) -> None:
        """Nothing of both remains. A failure becomes a note on `error`: the database rolls back
        once the connection ends, and a prepared transaction is found by `recover`.
        """
        try:
            await self._roll_back()
        except Exception as trouble:
            error.add_note(f"The database could not be asked to roll back: {trouble}")
        if self._txn.state in (TxnState.ABORTED, TxnState.COMMITTED):
            return
        try:
            await settled(self._txn.abort())
        except BaseException as trouble:
            self._keeper.look_again(self._database_id)
            if not isinstance(trouble, PulsarException):
                raise
            error.add_note(f"Transaction {self._txn.txn_id} could not be aborted: {trouble}")

    async def _roll_back(self) -> None:
        """If it is interrupted, once more: the connection's next block would commit what is open
        here.
        """
        try:
            await self._connection.rollback()
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(Exception):
                await self._connection.rollback()
            raise

    async def _find_out(self, error: Exception) -> None:
        """COMMIT failed: whether the database has committed all the same is in its table. Returns
        if it has.
        """
        try:
            await self._connection.rollback()
            now_ms = self._keeper.clock.now_ms()
            verdict = await tables.decide(
                self._connection, self._database_id, self._row_name, now_ms
            )
        except BaseException as trouble:
            self._keeper.look_again(self._database_id)
            if not isinstance(trouble, Exception):
                raise
            log.warning("The database cannot be asked about %s: %s", self._txn.txn_id, trouble)
            raise DatabaseOutcomeUnknown(self._txn.txn_id) from error
        if verdict is Verdict.ABORTED:
            await self._give_up(error)
            raise error

    async def _commit_at_broker(self) -> None:
        try:
            await settled(self._txn.commit())
        except InvalidTxnStatus as error:
            error.add_note(
                "The database has committed; somebody else has aborted the broker's prepared "
                "transaction meanwhile, so its messages are missing"
            )
            raise
        except PulsarException as error:
            self._keeper.look_again(self._database_id)
            raise CommitPending(self._txn.txn_id) from error
        except BaseException:
            self._keeper.look_again(self._database_id)
            raise
        self._keeper.finished(self._database_id, [self._row_name])
