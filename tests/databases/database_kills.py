"""Kill -9 the process, the broker or the database while a program commits with both, start what is
dead again, and compare: each order has one row and one message, and is acknowledged.

`python tests/databases/database_kills.py --rounds 200`
"""

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from billing import KILL, STEPS, Task, typed
from postgresql import PostgreSQL, commands

from pybroker.client import Client, ConsumerType, InitialPosition
from pybroker.testing.broker_process import BrokerProcess

PROGRAM = Path(__file__).parent / "billing.py"
VICTIMS = {"sqlite": ("process", "broker"), "postgresql": ("process", "broker", "database")}
ORDERS = 2
ENDED_WITHIN_S = 600
LAST = b"0"
CHECK = "check"


class Shop:
    """Where the programs run: one broker and one server for all rounds."""

    def __init__(self, folder: Path, broker: BrokerProcess, server: PostgreSQL | None) -> None:
        self.folder = folder
        self.broker = broker
        self.server = server
        self._rounds = 0

    def new_task(self, database: str, count: int = ORDERS) -> Task:
        """With its own topics and its own database, and `count` orders."""
        self._rounds += 1
        name = f"round{self._rounds}"
        connect_to = str(self.folder / f"{name}.sqlite")
        if database == "postgresql":
            assert self.server is not None
            connect_to = self.server.create_schema(name)
        task = Task(
            self.broker.service_url, database, connect_to, f"{name}-in", f"{name}-out", count
        )
        with connect(task) as connection:
            connection.execute("CREATE TABLE invoices (number INTEGER NOT NULL)")
        publish(task)
        return task

    def kill(self, victim: str) -> None:
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        else:
            assert self.server is not None
            self.server.kill()
            self.server.start()


def connect(task: Task) -> Any:
    return (sqlite3 if task.database == "sqlite" else psycopg).connect(task.connect_to)


def publish(task: Task) -> None:
    """The invoices have a subscription from the beginning: without one, what is in a ledger that a
    crash has closed is of no use to anybody, and goes.
    """
    with Client(task.service_url) as client:
        client.subscribe(task.invoices, CHECK, ConsumerType.Shared).close()
        consumer = client.subscribe(
            task.orders, "billing", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        producer = client.create_producer(task.orders)
        for number in range(1, task.count + 1):
            producer.send(b"%d" % number)
        consumer.close()


class Program:
    """One run of billing.py."""

    def __init__(self, shop: Shop, task: Task) -> None:
        self._shop = shop
        self._task = task
        self.killed = ""  # at which step
        self.steps = 0

    def run(self) -> bool:
        """Whether it ended well."""
        command = [sys.executable, str(PROGRAM), typed(self._task)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            limit = threading.Timer(ENDED_WITHIN_S, process.kill)
            limit.start()
            assert process.stdout is not None and process.stdin is not None
            for line in process.stdout:
                word, what = line.split(maxsplit=1)
                if word == KILL:
                    self.killed = what.strip()
                    self._shop.kill(self._task.victim)
                    with suppress(BrokenPipeError):  # it did not survive that
                        os.write(process.stdin.fileno(), b"done\n")
                elif word == STEPS:
                    self.steps = int(what)
            assert process.stderr is not None
            self.errors = process.stderr.read()
            process.wait()
            limit.cancel()
        return process.returncode == 0


def steps_of(shop: Shop, database: str) -> int:
    """How many steps the program takes if nothing dies."""
    program = Program(shop, shop.new_task(database))
    assert program.run(), program.errors
    return program.steps


def round_of_kills(shop: Shop, database: str, victim: str, dies_at: int) -> list[str]:
    """Returns a sentence for each broken promise."""
    task = shop.new_task(database)
    task.victim, task.dies_at = victim, dies_at
    program = Program(shop, task)
    if not program.run():
        task.dies_at = 0
        again = Program(shop, task)
        if not again.run():
            return [f"The program does not end: {again.errors[-3000:]}"]
    return faults_in(task)


def round_with_another(shop: Shop, database: str, victim: str, dies_at: int) -> list[str]:
    """A second program bills the same orders, and recovers beside the one that something happens
    to. Whoever dies is started again, as always: the other one may have ended before that.
    """
    task = shop.new_task(database, 2 * ORDERS)
    struck = Program(shop, replace(task, victim=victim, dies_at=dies_at))
    other = Program(shop, task)
    with ThreadPoolExecutor(2) as both:
        ended = [both.submit(each.run) for each in (struck, other)]
        ended_well = [each.result() for each in ended]
    if not all(ended_well) and not (again := Program(shop, task)).run():
        return [f"The programs do not end: {struck.errors[-1500:]} {again.errors[-1500:]}"]
    return faults_in(task)


def faults_in(task: Task) -> list[str]:
    expected = list(range(1, task.count + 1))
    with connect(task) as connection:
        rows = sorted(row[0] for row in connection.execute("SELECT number FROM invoices"))
        left = connection.execute("SELECT COUNT(*) FROM pybroker_transactions").fetchone()[0]
        database_id = connection.execute("SELECT database_id FROM pybroker_database").fetchone()[0]
    connection.close()
    with Client(task.service_url) as client:
        prepared = [each for each in client.prepared_transactions() if database_id in each.name]
        if prepared:  # nobody reads beyond them
            return [f"{prepared} are still prepared, with the rows {rows}"]
        messages = sorted(read_to_the_end(client, task.invoices, CHECK))
        unacknowledged = read_to_the_end(client, task.orders, "billing")
    checks = {
        f"The database has the rows {rows}": rows == expected,
        f"The topic has the messages {messages}": messages == expected,
        f"The orders {unacknowledged} are not acknowledged": unacknowledged == [],
        f"The table keeps {left} rows": left <= task.count + 1,
    }
    return [sentence for sentence, is_so in checks.items() if not is_so]


def read_to_the_end(client: Client, topic: str, subscription: str) -> list[int]:
    """What comes before a message that is sent now."""
    consumer = client.subscribe(
        topic, subscription, ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    client.create_producer(topic).send(LAST)
    found = list[int]()
    while (message := consumer.receive(timeout_millis=60_000)).data() != LAST:
        found.append(int(message.data()))
    consumer.close()
    return found


def faults_at_steps(shop: Shop, database: str, victim: str, every: int) -> list[str]:
    """At every step, or at one of so many."""
    found = list[str]()
    for dies_at in range(every, steps_of(shop, database) + 1, every):
        faults = round_of_kills(shop, database, victim, dies_at)
        found += [f"{database}, {victim} at step {dies_at}: {each}" for each in faults]
    return found


def run(rounds: int, seed: int, shop: Shop, say: Callable[[str], None]) -> list[str]:
    rng = random.Random(seed)
    databases = [each for each in VICTIMS if each == "sqlite" or shop.server is not None]
    steps = {database: steps_of(shop, database) for database in databases}
    faults, kills = list[str](), Counter[str]()
    for number in range(1, rounds + 1):
        database = rng.choice(databases)
        victim = rng.choice(VICTIMS[database])
        dies_at = rng.randint(1, steps[database])
        kill = rng.choice((round_of_kills, round_with_another))
        beside = " beside another program" if kill is round_with_another else ""
        what = f"round {number}: {database}, {victim}{beside} at step {dies_at}"
        try:
            found = kill(shop, database, victim, dies_at)
        except Exception as error:
            raise RuntimeError(f"{what} cannot be judged") from error
        faults += [f"{what}: {each}" for each in found]
        kills[f"{victim} ({database}){beside}"] += 1
        if number % 20 == 0:
            say(f"{number} rounds, {len(faults)} promises broken")
    say(f"{rounds} kills: {dict(kills)}; steps: {steps}; {len(faults)} promises broken")
    return faults


def open_shop(stack: ExitStack, postgresql: bool) -> Shop:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    broker = stack.enter_context(BrokerProcess(folder / "data"))
    server = stack.enter_context(PostgreSQL()) if postgresql else None
    return Shop(folder, broker, server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    if commands() is None:
        print("PostgreSQL is not installed (Debian: postgresql): only SQLite is killed")
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as stack:
        shop = open_shop(stack, commands() is not None)
        faults = run(options.rounds, options.seed, shop, lambda line: print(line, flush=True))
    print(*faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
