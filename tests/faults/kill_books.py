"""Compares the contents of topics with the promises made to clients."""

from collections import Counter
from collections.abc import Iterator

from kill_workers import COPIES, NUMBERS, TRIPLE, Books

from pybroker.client import Client, MessageId


def faults_in(client: Client, books: Books) -> list[str]:
    """One sentence for each broken promise; empty if there is none."""
    numbers = read_all(client, NUMBERS)
    faults = list(compare(NUMBERS, numbers, set(books.acknowledged_numbers), set()))
    if numbers != sorted(numbers):
        faults.append(f"{NUMBERS} is not in the order of publishing")
    faults += compare(COPIES, read_all(client, COPIES), set(books.acknowledged_numbers), set())
    for topic in TRIPLE:
        triples = read_all(client, topic)
        faults += compare(topic, triples, books.committed_triples, books.aborted_triples)
    return faults


def read_all(client: Client, topic: str) -> list[int]:
    reader = client.create_reader(topic, MessageId.earliest)
    values = []
    while reader.has_message_available():
        values.append(int(reader.read_next(timeout_millis=30_000).data()))
    reader.close()
    return values


def compare(topic: str, found: list[int], promised: set[int], aborted: set[int]) -> Iterator[str]:
    counts = Counter(found)
    if lost := sorted(promised - counts.keys()):
        yield f"{topic} lost {len(lost)} acknowledged messages: {lost[:10]}"
    if twice := sorted(value for value, count in counts.items() if count > 1):
        yield f"{topic} shows {len(twice)} messages more than once: {twice[:10]}"
    if visible := sorted(aborted & counts.keys()):
        yield f"{topic} shows {len(visible)} aborted messages: {visible[:10]}"
    if unknown := sorted(counts.keys() - promised - aborted):
        yield f"{topic} shows {len(unknown)} messages that nobody was promised: {unknown[:10]}"
