"""Wrong cluster brokers, each made by one change. The cluster's simulation must catch them."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from bugs import grouping, splitting
from bugs.committing import decided_one_by_one
from sim_bugs import no_entry_by_timeout, recovery_add_on_the_normal_path

from brokers import member
from brokers.topology import LIMITS
from managed_ledger.storage.bookkeeper import entry_body, reader, recovery, writer
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.entry_body import EntryBody
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.admin.routes import topic as topic_routes
from pybroker.base.names import SYSTEM_NAMESPACE, TopicName
from pybroker.broker.brokers import bundle_release
from pybroker.broker.brokers.ownership import Bundle, NotServedHere, OtherOwner
from pybroker.broker.namespaces.usable_names import refuse_internal
from pybroker.broker.persistent.lost_logs import LostLogs
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.topics import Topics
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.cluster import balancing, bundle_ownership
from pybroker.cluster.bundle_ownership import _SERVED, BundleOwnership, BundleState
from pybroker.cluster.bundles import ClusterBundles
from pybroker.cluster.cluster import Cluster
from pybroker.cluster.finishing import Finishing
from pybroker.cluster.live_brokers import LiveBrokers
from pybroker.cluster.others_of_parts import OthersOfParts
from pybroker.cluster.transactions.fencing import SharedFencing
from pybroker.handing_over import hand_over
from pybroker.process import clustered
from pybroker.server.transactions import on_transaction
from pybroker.transaction.coordinator import coordinators
from pybroker.transaction.pending_acks.store import PendingAckStore

Bug = Callable[[], AbstractContextManager[Any]]


@contextmanager
def serving_after_the_session_is_lost() -> Iterator[None]:
    """A broker keeps forever what it had when its session ended."""
    session_is, lookup = Cluster._session_is, BundleOwnership.lookup

    def unimpressed(self: Cluster, state: SessionState) -> None:
        if state is not SessionState.EXPIRED:
            session_is(self, state)

    def owns(self: BundleOwnership, name: TopicName) -> bool:
        bundle = self._boundaries.bundle_of(name)
        return bundle is not None and self._states.get(bundle) in _SERVED

    async def looked_up(
        self: BundleOwnership, name: TopicName, authoritative: bool
    ) -> OtherOwner | None:
        return None if self.owns(name) else await lookup(self, name, authoritative)

    with (
        patch.object(Cluster, "_session_is", unimpressed),
        patch.object(BundleOwnership, "owns", owns),
        patch.object(BundleOwnership, "lookup", looked_up),
    ):
        yield


def torn_appends_taken_for_whole() -> AbstractContextManager[Any]:
    """Messages that a crash has torn off an append count as stored."""
    return patch.object(BookKeeperBackend, "keeps_appends_whole", True)


@contextmanager
def forgotten_logs_stay() -> Iterator[None]:
    """An unload leaves a log open. The next owner fences the log, and it is used again."""

    async def leave_open(*args: object) -> None:
        """Does nothing."""

    with (
        patch.object(PendingAckStore, "close", leave_open),
        patch.object(bundle_release, "_close_logs", leave_open),
        patch.object(LostLogs, "lost", lambda self, log_name: None),
    ):
        yield


@contextmanager
def an_end_without_the_bundle_is_ok() -> Iterator[None]:
    """A topic that this broker does not serve counts as nonexistent."""
    loaded = LocalParticipants._loaded

    async def required(ownership: Any, name: TopicName) -> None:
        """Does nothing."""

    async def believed(self: LocalParticipants, name: TopicName) -> Topic | None:
        try:
            return await loaded(self, name)
        except NotServedHere:
            return None

    with (
        patch.object(on_transaction, "_require_owned", required),
        patch.object(LocalParticipants, "_loaded", believed),
    ):
        yield


def former_bundles_stay() -> AbstractContextManager[Any]:
    """Bundles keep their owners although the namespace's division was deleted or recreated."""
    return patch.object(BundleOwnership, "_divided_anew", lambda self, namespace: None)


def interrupted_deletions_stay() -> AbstractContextManager[Any]:
    """Nobody finishes a deletion that a broker has begun, unless a client requests it again."""
    return patch.object(Finishing, "start", lambda self: None)


def any_bundle_is_given_back() -> AbstractContextManager[Any]:
    """A bundle is given back even if lookups would return it to the same broker."""
    return patch.object(balancing, "should_move", lambda bundle, broker, loads: True)


@contextmanager
def latest_aborts_are_not_handed_over() -> Iterator[None]:
    """A topic's snapshot does not name the last aborted transaction."""
    hidden_transactions = hand_over.hidden_transactions

    async def all_but_one(ledger: Any, hidden: Any) -> Any:
        found = await hidden_transactions(ledger, hidden)
        return found._replace(aborted=found.aborted[:-1])

    with patch.object(hand_over, "hidden_transactions", all_but_one):
        yield


def unloaded_wherever_it_is() -> AbstractContextManager[Any]:
    """A broker without the topic has nothing to unload, and reports success."""
    return patch.object(topic_routes, "check_owned", lambda ownership, name: None)


@contextmanager
def divisions_are_believed() -> Iterator[None]:
    """A namespace is unloaded by the division that the asked broker remembers."""

    async def served_of(self: ClusterBundles, namespace: str) -> list[Bundle]:
        bundles = await self._boundaries.of_namespace(namespace)
        return [each for each in bundles if await self._ownership.is_served(each)]

    with patch.object(ClusterBundles, "served_of", served_of):
        yield


def halves_count_before_the_split() -> AbstractContextManager[Any]:
    """Half of a bundle is given back before the split has created it."""
    states = {each.name: each for each in BundleState} | {"HALF": BundleState.OWNED}
    return patch.object(bundle_ownership, "BundleState", SimpleNamespace(**states))


@contextmanager
def others_are_not_asked_to_fence() -> Iterator[None]:
    """A newer session is granted once its epoch is recorded. Older ones end on one broker only."""

    async def fence(self: SharedFencing, newest: Any, here: Any, waits_for: Any) -> int:
        return 0

    with patch.object(SharedFencing, "fence", fence):
        yield


def promises_are_kept_to_oneself() -> AbstractContextManager[Any]:
    """Only the broker that gave a bundle back knows its next owner."""
    return patch.object(LiveBrokers, "told", lambda self, bundle: [])


def system_topics_are_deduplicated() -> AbstractContextManager[Any]:
    """Deduplication has a cursor on the topic of snapshots, as on any other."""
    of_brokers = property(lambda name: name.namespace_name == SYSTEM_NAMESPACE)
    return patch.object(TopicName, "system", of_brokers)


@contextmanager
def absence_is_believed() -> Iterator[None]:
    """A topic whose partitions this broker has not heard of does not exist."""

    async def learn(self: Topics, name: TopicName) -> None:
        refuse_internal(name)

    with patch.object(Topics, "_learn_of", learn):
        yield


@contextmanager
def each_counts_its_coordinators() -> Iterator[None]:
    """Each broker has as many coordinators as its own configuration says."""

    async def share(*args: object) -> None:
        """Does nothing."""

    with patch.object(clustered, "share_coordinators", share):
        yield


@contextmanager
def ids_are_taken_for_addresses() -> Iterator[None]:
    """A bookie is sought at its id."""

    async def address(self: Bookies, bookie: str) -> Any:
        host, _, port = bookie.rpartition(":")
        if not host:
            raise BookieFailed("its id is not an address")
        return host, int(port)

    with patch.object(Bookies, "_address", address):
        yield


@contextmanager
def few_copies_for_ever() -> Iterator[None]:
    """A closed ledger asks for the copies that it got."""

    def as_it_is(closed: LedgerMetadata, wanted: object) -> LedgerMetadata:
        return closed

    with (
        patch.object(writer, "with_copies", as_it_is),
        patch.object(recovery, "with_copies", as_it_is),
    ):
        yield


@contextmanager
def former_brokers_keep_their_parts() -> Iterator[None]:
    """A topic that is made scalable is loaded by its new broker while others still have it."""

    async def nobody_is_asked(self: OthersOfParts, name: TopicName) -> None:
        """Does nothing."""

    with patch.object(OthersOfParts, "leave", nobody_is_asked):
        yield


@contextmanager
def migrations_are_not_heeded() -> Iterator[None]:
    """A deletion, or a change of partitions, is decided whether or not the topic is made scalable
    meanwhile.
    """

    async def decided(self: Topics, name: TopicName, decide: Any) -> None:
        await decide(None)

    with patch.object(Topics, "unless_migrated", decided):
        yield


def parts_stay_where_they_are() -> AbstractContextManager[Any]:
    """The partitions of a topic that is made scalable stay in the bundles that they had."""
    return patch.object(Cluster, "place_by", lambda self, place_of: None)


@contextmanager
def one_copy_is_enough() -> Iterator[None]:
    """An entry is confirmed once a single bookie has it."""
    confirm = writer.LedgerWriter._confirm_all_that_are

    def hasty(self: writer.LedgerWriter) -> None:
        quorums = self._quorums
        self._quorums = replace(quorums, ack=1)
        confirm(self)
        self._quorums = quorums

    with patch.object(writer.LedgerWriter, "_confirm_all_that_are", hasty):
        yield


def silent_bookies_are_waited_for() -> AbstractContextManager[Any]:
    """What a bookie does not answer never fails."""
    patient = replace(
        LIMITS, connect_timeout_s=math.inf, add_timeout_s=math.inf, read_timeout_s=math.inf
    )
    return patch.object(member, "LIMITS", patient)


def timeouts_by_each_wall_clock() -> AbstractContextManager[Any]:
    """What is left of a transaction's time is told by the clock of its coordinator's new broker."""
    return patch.object(coordinators, "count_from", lambda transactions, now_ms: None)


@contextmanager
def copies_are_believed() -> Iterator[None]:
    """An entry's checksum and place are not compared."""

    def unpack(body: bytes, ledger_id: int, entry_id: int | None) -> EntryBody:
        _, of_entry, last_confirmed, length = entry_body._HEAD.unpack_from(body)
        stated = of_entry if entry_id is None else entry_id
        return EntryBody(stated, last_confirmed, length, body[entry_body.HEAD_BYTES :])

    with patch.object(reader, "unpack", unpack), patch.object(recovery, "unpack", unpack):
        yield


BUGS: Final[dict[str, Bug]] = {
    "absence-is-believed": absence_is_believed,
    "any-bundle-is-given-back": any_bundle_is_given_back,
    "children-before-their-parents": splitting.children_before_their_parents,
    "children-without-subscriptions": splitting.children_without_subscriptions,
    "commits-lost-with-sealed-parents": splitting.commits_lost_with_sealed_parents,
    "copies-are-believed": copies_are_believed,
    "decided-one-by-one": decided_one_by_one,
    "divisions-are-believed": divisions_are_believed,
    "each-counts-its-coordinators": each_counts_its_coordinators,
    "end-without-the-bundle-is-ok": an_end_without_the_bundle_is_ok,
    "few-copies-for-ever": few_copies_for_ever,
    "forgotten-logs-stay": forgotten_logs_stay,
    "former-brokers-keep-their-parts": former_brokers_keep_their_parts,
    "former-bundles-stay": former_bundles_stay,
    "group-half-decided": grouping.group_half_decided,
    "halves-count-before-the-split": halves_count_before_the_split,
    "ids-are-taken-for-addresses": ids_are_taken_for_addresses,
    "interrupted-deletions-stay": interrupted_deletions_stay,
    "latest-aborts-are-not-handed-over": latest_aborts_are_not_handed_over,
    "members-are-told-once": grouping.members_are_told_once,
    "migrations-are-not-heeded": migrations_are_not_heeded,
    "no-entry-by-timeout": no_entry_by_timeout,
    "one-copy-is-enough": one_copy_is_enough,
    "others-are-not-asked-to-fence": others_are_not_asked_to_fence,
    "parts-stay-where-they-are": parts_stay_where_they_are,
    "promises-are-kept-to-oneself": promises_are_kept_to_oneself,
    "recovery-add-on-the-normal-path": recovery_add_on_the_normal_path,
    "serving-after-the-session-is-lost": serving_after_the_session_is_lost,
    "silent-bookies-are-waited-for": silent_bookies_are_waited_for,
    "system-topics-are-deduplicated": system_topics_are_deduplicated,
    "timeouts-by-each-wall-clock": timeouts_by_each_wall_clock,
    "torn-appends-taken-for-whole": torn_appends_taken_for_whole,
    "two-layouts-of-one-epoch": splitting.two_layouts_of_one_epoch,
    "unloaded-wherever-it-is": unloaded_wherever_it_is,
}
