"""`make kill-rounds`: SIGKILL the broker under load and restart it, two hundred times.

The load (kill_workers.py) runs through all rounds and reconnects by itself. A round waits until
every worker has made progress, waits for a random time of up to half a second, kills, and restarts.
At the end the topics must contain what the clients were promised (kill_books.py).
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kill_books import faults_in
from kill_sessions import Sessions
from kill_workers import (
    Books,
    Progress,
    copy_numbers,
    publish_numbers,
    publish_triples,
    start_worker,
)

from pybroker.client import Client
from pybroker.testing.broker_process import BrokerProcess

WORKERS = ("numbers", "triples", "copies", "sessions")
# Retention: the books compare all messages ever published.
CONFIG = """\
brokerDeduplicationEnabled=true
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
"""
MAX_DELAY_S = 0.5
RECOVERED_WITHIN_S = 60.0


def run(rounds: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Run the rounds; returns a sentence for each broken promise."""
    config = folder / "broker.conf"
    config.write_text(CONFIG)
    books, progress = Books(), Progress()
    with BrokerProcess(folder / "data", ["--config", str(config)]) as broker:
        client = Client(broker.service_url, enable_transaction=True)
        sessions = Sessions(broker.service_url)
        threads = start_workers(client, sessions, progress, books)
        kill_and_restart(broker, progress, rounds, random.Random(seed), say)
        progress.stop()
        for thread in threads:
            thread.join(RECOVERED_WITHIN_S)
        if stuck := [thread.name for thread in threads if thread.is_alive()]:
            raise RuntimeError(f"{', '.join(stuck)} did not end: {books.summary()}")
        faults = [*faults_in(client, books), *sessions.faults_in(client)]
        client.close()
    say(
        f"{rounds} kills: {books.summary()}, {sessions.count} sessions of a transactional id; "
        f"{len(faults)} promises broken"
    )
    return faults


def start_workers(
    client: Client, sessions: Sessions, progress: Progress, books: Books
) -> list[threading.Thread]:
    work = dict(
        zip(WORKERS, (publish_numbers, publish_triples, copy_numbers, sessions.work), strict=True)
    )
    return [
        start_worker(name, progress, partial(each, client, progress, books))
        for name, each in work.items()
    ]


def kill_and_restart(
    broker: BrokerProcess,
    progress: Progress,
    rounds: int,
    rng: random.Random,
    say: Callable[[str], None],
) -> None:
    started = time.monotonic()
    for number in range(1, rounds + 1):
        wait_for_all_workers(progress)
        progress.wait_until(lambda: False, rng.uniform(0, MAX_DELAY_S))
        broker.kill()
        broker.start()
        if number % 10 == 0 or number == rounds:
            say(f"round {number} of {rounds}, {time.monotonic() - started:.0f} s")
    wait_for_all_workers(progress)


def wait_for_all_workers(progress: Progress) -> None:
    before = {name: progress.count(name) for name in WORKERS}

    def all_got_on() -> bool:
        return all(progress.count(name) > count for name, count in before.items())

    if not progress.wait_until(all_got_on, RECOVERED_WITHIN_S):
        stuck = [name for name, count in before.items() if progress.count(name) == count]
        raise RuntimeError(f"No progress of {', '.join(stuck)} for {RECOVERED_WITHIN_S:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make kill-rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        faults = run(options.rounds, options.seed, Path(folder), partial(print, flush=True))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
