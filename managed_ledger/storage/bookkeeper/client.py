"""BookKeeper's client: creates, recovers, reads and deletes ledgers."""

import logging
import random
from collections.abc import Mapping
from typing import Final

from managed_ledger.config import Clock
from managed_ledger.storage.bookkeeper.bookies import BookieLimits, Bookies
from managed_ledger.storage.bookkeeper.errors import NotEnoughBookies
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, Segment
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.recovery import recover
from managed_ledger.storage.bookkeeper.writer import LedgerWriter
from managed_ledger.storage.tls_files import ClientTls
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.operations import EventType
from managed_ledger.storage.zookeeper.refresh import Refresh

log = logging.getLogger(__name__)
PULSARS_QUORUMS: Final = Quorums(ensemble=2, write=2, ack=2)


class BookKeeper:
    def __init__(
        self,
        zookeeper: ZooKeeper,
        clock: Clock,
        rng: random.Random,
        quorums: Quorums = PULSARS_QUORUMS,
        root: str = "/ledgers",
        limits: BookieLimits | None = None,
        tls: ClientTls | None = None,
        password: bytes = b"",
    ) -> None:
        """The quorums (managedLedgerDefaultEnsembleSize and so on) and the password are those of
        new ledgers. `tls` is for bookies.
        """
        self.store = LedgerStore(zookeeper, root)
        self.bookies = Bookies(rng, limits, tls, self.store.address)
        self._clock = clock
        self._quorums = quorums
        self._password = password
        self._copies = quorums.write  # of the newest ledger
        self._refresh = Refresh(self._look_at_bookies)

    async def open(self) -> None:
        """`zookeeper` must be open. Raises ZooKeeperError."""
        available = f"{self.store.root}/available"
        await self.store.zookeeper.watch(available, False, self._bookies_changed)
        await self._look_at_bookies()

    async def close(self) -> None:
        """Close the writers first: this does not. ZooKeeper stays open."""
        await self._refresh.close()
        await self.bookies.close()

    def new_metadata(self, custom: Mapping[str, bytes] | None = None) -> LedgerMetadata:
        """The metadata of a new ledger on bookies that are available now. With too few of them the
        ensemble is smaller; the ack quorum is not. Raises NotEnoughBookies.
        """
        registered = len(self.bookies.registered)
        quorums = self._quorums.within(len(self.bookies.available()))
        quorums = quorums or self._quorums.within(registered)
        if quorums is None:
            raise NotEnoughBookies(
                f"a ledger needs {self._quorums.ack} bookies, but only {registered} are "
                "registered; start more bookies, then retry"
            )
        self._say_copies(quorums.write)
        bookies = tuple(self.bookies.choose(quorums.ensemble))
        return LedgerMetadata(
            quorums=quorums,
            segments=(Segment(0, bookies),),
            password=self._password,
            created_ms=self._clock.now_ms(),
            custom=tuple((custom or {}).items()),
        )

    def _say_copies(self, copies: int) -> None:
        """Warns when new ledgers begin to have fewer copies than before."""
        before, self._copies = self._copies, copies
        if copies < before:
            log.warning(
                "new ledgers have %d copies of each entry instead of %d: only %d bookies are "
                "available. Auto-recovery makes the missing copies once there are more",
                copies,
                self._quorums.write,
                len(self.bookies.available()),
            )

    async def create(self, custom: Mapping[str, bytes] | None = None) -> LedgerWriter:
        """A new ledger. Raises NotEnoughBookies, ZooKeeperError."""
        ledger_id = await self.store.new_id()
        metadata = self.new_metadata(custom)
        version = await self.store.create(ledger_id, metadata)
        return self.writer(ledger_id, metadata, version)

    def writer(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, is_copy: bool = False
    ) -> LedgerWriter:
        """The writer of a ledger with `new_metadata`. `is_copy`: see LedgerWriter."""
        wanted = None if is_copy else self._quorums
        return LedgerWriter(ledger_id, metadata, version, self.store, self.bookies, wanted, is_copy)

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger's writer and close the ledger. See `recovery.recover`."""
        return await recover(ledger_id, self.store, self.bookies, self._quorums)

    async def delete(self, ledger_id: int) -> None:
        """Idempotent."""
        await self.store.delete(ledger_id)

    def _bookies_changed(self, event: EventType, path: str) -> None:
        self._refresh.request()

    async def _look_at_bookies(self) -> None:
        found = await self.store.bookies()
        self.bookies.locate(await self.store.addresses(found))
        self.bookies.register(found)
