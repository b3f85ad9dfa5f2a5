"""The final count: compares all that new readers get from the output topics with the input."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from pybroker.demo import flights
from pybroker.demo.payments import BALANCES, CREDITS, DEBITS, PLAIN_DEBITS, REJECTS, Transfer
from pybroker.demo.report import Verdict
from pybroker.demo.topics import read_all, stored_entries
from pybroker.spark import Marker


def audit_ledger(verdict: Verdict, service_url: str, transfers: Sequence[Transfer]) -> None:
    good = [transfer for transfer in transfers if transfer.is_good]
    bad = [transfer for transfer in transfers if not transfer.is_good]
    debits = _read(service_url, DEBITS)
    credits = _read(service_url, CREDITS)
    rejects = _read(service_url, REJECTS)
    _claim_once(verdict, "debits", debits, good)
    _claim_once(verdict, "credits", credits, good)
    _claim_once(verdict, "rejects", rejects, bad)
    total = sum(entry["cents"] for entry in debits + credits)
    moved = sum(entry["cents"] for entry in credits)
    verdict.claim(
        total == 0 and moved == sum(transfer.cents for transfer in good),
        f"debits and credits sum to {total}; {moved:,} cents moved",
    )
    _claim_balances(verdict, _read(service_url, BALANCES), good)


def _read(service_url: str, topic: str) -> list[dict[str, int]]:
    return [json.loads(message.data()) for message in read_all(service_url, [topic])]


def _claim_once(
    verdict: Verdict, name: str, entries: Sequence[dict[str, int]], expected: Sequence[Transfer]
) -> None:
    counts = Counter(entry["id"] for entry in entries)
    ids = {transfer.id for transfer in expected}
    missing = len(ids - counts.keys())
    repeated = sum(count - 1 for count in counts.values())
    foreign = len(counts.keys() - ids)
    verdict.claim(
        not missing and not repeated and not foreign,
        f"{name}: {len(entries):,} messages for {len(ids):,} transfers, {missing} missing, "
        f"{repeated} repeated, {foreign} unexpected",
    )


def _claim_balances(
    verdict: Verdict, entries: Sequence[dict[str, int]], good: Iterable[Transfer]
) -> None:
    published: Counter[tuple[object, int]] = Counter()
    for entry in entries:
        published[entry["account"], entry["minute_ms"]] += entry["cents"]
    expected: Counter[tuple[object, int]] = Counter()
    for transfer in good:
        expected[transfer.source, transfer.minute_ms] -= transfer.cents
        expected[transfer.target, transfer.minute_ms] += transfer.cents
    wrong = sum(published[place] != expected[place] for place in expected | published)
    total = sum(published.values())
    verdict.claim(
        wrong == 0 and total == 0,
        f"balances-by-minute: {len(published):,} balances of an account in a minute, "
        f"{wrong} wrong, sum {total}",
    )


def audit_aborted(
    verdict: Verdict, service_url: str, http_url: str, markers: Sequence[Marker]
) -> None:
    """Counts messages of aborted transactions, which are stored but invisible, and markers."""
    visible = {
        (message.message_id().ledger_id(), message.message_id().entry_id())
        for message in read_all(service_url, [DEBITS])
    }
    stored = stored_entries(http_url, DEBITS)
    aborted = stored - len(visible) - len(markers)
    verdict.claim(
        aborted > 0,
        f"debits holds {stored:,} entries, {len(visible):,} visible, {len(markers)} commit "
        f"markers: {aborted} were left by aborted transactions, none of them visible",
    )


def audit_plain_sink(verdict: Verdict, service_url: str, transfers: Sequence[Transfer]) -> None:
    entries = _read(service_url, PLAIN_DEBITS)
    ids = {entry["id"] for entry in entries}
    good = sum(transfer.is_good for transfer in transfers)
    verdict.claim(
        len(entries) > len(ids) == good,
        f"for contrast, the at-least-once sink: {len(entries):,} debits for {good:,} transfers, "
        f"{len(entries) - len(ids):,} duplicates",
    )


def audit_flights(verdict: Verdict, service_url: str, expected: flights.Figures) -> None:
    for topic, figures in expected.items():
        published: Counter[str] = Counter()
        for message in read_all(service_url, [topic]):
            flights.add_published(published, message.data())
        wrong = sum(published[name] != figures[name] for name in figures | published)
        counted = sum(count for name, count in published.items() if name.endswith(" flights"))
        verdict.claim(
            wrong == 0,
            f"{topic.rsplit('/', 1)[1]}: {len(figures):,} figures of {counted:,} flights, "
            f"{wrong} wrong",
        )
