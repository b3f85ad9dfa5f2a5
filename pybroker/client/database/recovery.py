"""What a client remembers of the databases that it commits with; what recovery finds and ends.

Prepared transactions carry the database's id in their names. Each is decided by its row: if that
is there, the database has committed; if it is not, recovery puts a row there that says ABORTED, and
then the database never will. So any number of processes may recover at once, also beside one that
is just committing: it holds its row, and they wait for it.

A row is needed until the broker has committed. The process that wrote it deletes it in its next
transaction. What a process leaves behind when it ends (a row for each thread) goes after 30 days,
if no prepared transaction has its name: a broker that cannot be reached now, or another role's
transactions, which this client does not see, may need it until then.
"""

import logging
import random
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from pybroker.base.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.client import aio
from pybroker.client.database import tables
from pybroker.client.database.connections import Connection, settled
from pybroker.client.database.tables import Verdict
from pybroker.client.errors import InvalidConfiguration, PulsarException
from pybroker.client.transactions.prepared import PreparedTransaction

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 60.0
# Another process's transaction is prepared for a moment in each of its commits.
LEFT_BEHIND_MS: Final = 10_000
KEEP_ROWS_MS: Final = 30 * 24 * 3600 * 1000
_MOST_DELETED: Final = 100  # rows in one statement
_MOST_FINISHED: Final = 10_000  # remembered; what is beyond goes after 30 days


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover` found prepared, and did with it."""

    committed: tuple[TxnId, ...] = ()
    aborted: tuple[TxnId, ...] = ()
    undecided: tuple[TxnId, ...] = ()  # the database or the broker did not answer: recover again


class Keeper:
    """One for each client. Used by all of its threads."""

    def __init__(self, core: aio.Client) -> None:
        self.rng: random.Random = core._cluster.rng
        self.clock: Clock = core._cluster.clock
        self._finished: defaultdict[str, deque[str]] = defaultdict(
            lambda: deque(maxlen=_MOST_FINISHED)
        )
        self._looked_s: dict[str, float] = {}
        self._ids: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def take_finished(self, database_id: str) -> list[str]:
        """Rows that no one needs any more: for the caller to delete."""
        finished, taken = self._finished[database_id], list[str]()
        while finished and len(taken) < _MOST_DELETED:
            try:
                taken.append(finished.popleft())
            except IndexError:  # another thread was faster
                break
        return taken

    def finished(self, database_id: str, row_names: list[str]) -> None:
        self._finished[database_id].extend(row_names)

    def look_again(self, database_id: str) -> None:
        """The next transaction recovers first, whenever that is."""
        self._looked_s.pop(database_id, None)

    async def database_id(self, connection: Connection, may_end: bool = False) -> str:
        """As it was at the last look; `look_up` for the others."""
        return self._known(connection) or await self.look_up(connection, may_end)

    async def look_up(self, connection: Connection, may_end: bool = False) -> str:
        """`may_end`: nobody needs what the connection has open. Raises InvalidConfiguration if the
        tables are not there and cannot be created.
        """
        may_end = may_end or connection.pending() is False
        found = await tables.database_id(connection, may_end)
        if found is None:
            found = await tables.create(connection, self.rng)
        self._remember(connection, found)
        return found

    def _known(self, connection: Connection) -> str | None:
        key = connection.key()
        return None if key is None else self._ids.get(key)

    def _remember(self, connection: Connection, database_id: str) -> None:
        if (key := connection.key()) is not None:
            self._ids[key] = database_id

    async def new_identity(self, connection: Connection) -> str:
        await self.look_up(connection, may_end=True)
        fresh = await tables.replace_id(connection, self.rng)
        self._remember(connection, fresh)
        return fresh

    async def recover_in_time(self, client: Any, connection: Connection, database_id: str) -> None:
        """At the first transaction with a database, and then once a minute: another process may
        have died. Not while the connection has a transaction of the application. One coordinator
        that is away does not keep the application from the others.
        """
        now_s = self.clock.monotonic_s()
        looked_s = self._looked_s.get(database_id)
        if looked_s is not None and now_s - looked_s < LOOK_AGAIN_S:
            return
        if connection.pending() is not False:
            return
        self._looked_s[database_id] = now_s
        database_id = await self.look_up(connection)
        at_least_ms = 0 if looked_s is None else LEFT_BEHIND_MS
        try:
            await self.recover(client, connection, database_id, at_least_ms)
        except PulsarException as error:
            log.warning("What is prepared cannot be listed; again in a minute: %s", error)

    async def recover_now(self, client: Any, connection: Connection) -> Recovered:
        if connection.pending():
            raise InvalidConfiguration(
                "The connection has an open transaction, which recovery would end: commit it or "
                "roll it back before, or pass another connection"
            )
        database_id = await self.look_up(connection, may_end=True)
        recovered = await self.recover(client, connection, database_id)
        self._looked_s[database_id] = self.clock.monotonic_s()
        return recovered

    async def recover(
        self, client: Any, connection: Connection, database_id: str, at_least_ms: int = 0
    ) -> Recovered:
        """Decides what has been prepared for `at_least_ms`, and cleans the table."""
        now_ms = self.clock.now_ms()
        old = await tables.older_than(connection, now_ms - KEEP_ROWS_MS)
        # The rows were read before: what commits after this is not among them.
        listed = await settled(client.prepared_transactions())
        found = [
            (each, row_name)
            for each in listed
            if (row_name := tables.row_name_in(each.name, database_id)) is not None
        ]
        await self._clean(connection, set(old) - {row_name for _, row_name in found})
        ended: dict[Verdict | None, list[TxnId]] = {each: [] for each in (*Verdict, None)}
        for each, row_name in found:
            if each.age_ms >= at_least_ms:
                verdict = await self._decide(client, connection, database_id, each, row_name)
                ended[verdict].append(each.txn_id)
        return Recovered(
            tuple(ended[Verdict.COMMITTED]), tuple(ended[Verdict.ABORTED]), tuple(ended[None])
        )

    async def _clean(self, connection: Connection, row_names: set[str]) -> None:
        """Each by itself: so it never waits for one row while it holds another. What cannot be
        deleted now is in nobody's way.
        """
        try:
            for row_name in sorted(row_names):
                await tables.delete(connection, [row_name])
                await connection.commit()
        except Exception as error:
            log.debug("Old rows stay for now: %s", error)
            await connection.rollback()

    async def _decide(
        self,
        client: Any,
        connection: Connection,
        database_id: str,
        left: PreparedTransaction,
        row_name: str,
    ) -> Verdict | None:
        try:
            verdict = await tables.decide(connection, database_id, row_name, self.clock.now_ms())
        except Exception as error:
            log.warning(
                "Transaction %s stays prepared, because its row cannot be decided (is its process "
                "still at work?): %s",
                left.txn_id,
                error,
            )
            await connection.rollback()
            return None
        return await self._follow(client, left, verdict, database_id, row_name)

    async def _follow(
        self,
        client: Any,
        left: PreparedTransaction,
        verdict: Verdict,
        database_id: str,
        row_name: str,
    ) -> Verdict | None:
        """Ends it at the broker as the database has decided. Its own process may do the same."""
        txn = client.attach_transaction(left.txn_id)
        try:
            await settled(txn.commit() if verdict is Verdict.COMMITTED else txn.abort())
        except (InvalidTxnStatus, TransactionNotFound) as error:
            if verdict is Verdict.COMMITTED and isinstance(error, InvalidTxnStatus):
                log.error(
                    "The database has committed, but transaction %s was aborted by somebody else, "
                    "so its messages are missing: %s",
                    left.txn_id,
                    error,
                )
            elif isinstance(error, InvalidTxnStatus):
                # Its own process has ended it since it was listed, and then deleted its row.
                self.finished(database_id, [row_name])
                verdict = Verdict.COMMITTED
        except PulsarException as error:
            log.warning("Transaction %s is %s, but: %s", left.txn_id, verdict.value, error)
            return None
        log.info("Transaction %s is %s, as its database says", left.txn_id, verdict.value)
        return verdict


_keepers: WeakKeyDictionary[aio.Client, Keeper] = WeakKeyDictionary()


def keeper_of(core: aio.Client) -> Keeper:
    found = _keepers.get(core)
    if found is None:
        found = _keepers.setdefault(core, Keeper(core))
    return found
