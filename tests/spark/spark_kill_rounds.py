"""Rounds of kill -9 on a Spark standalone cluster while a pipeline writes, with a check at the end.

    python tests/spark/spark_kill_rounds.py --rounds 30 --kind sink --source files

In each round a group of rows comes in, and an executor, the driver or the broker dies at a labelled
place of the batch that writes the group. A live reader of the output sees each group whole or not
at all. At the end each row is there once.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final, Self

from spark_cluster import Cluster

from pybroker.base.errors import PulsarError
from pybroker.client import Client, InitialPosition, MessageId, Outgoing, encode_batch
from pybroker.demo.topics import create_partitioned, read_all
from pybroker.testing.broker_process import BrokerProcess

OUTPUT: Final = "persistent://public/default/killed-output"
INPUT: Final = "persistent://public/default/killed-input"
TASKS: Final = ("task-begun", "task-working", "task-fed")
PLACES: Final = {
    "sink": ("planned", *TASKS, "task-done", "locked", "published", "marked", "committed"),
    "foreach": (*TASKS, "acknowledged", "published", "marked", "committed"),
}
GROUP: Final = 120
PADDING: Final = "x" * 1000
ROUND_S: Final = 420.0
# The limit from a group's first visible row to the last; the broker may have to restart meanwhile.
WHOLE_S: Final = 30.0


class Observer:
    """Reads the output while it is being written."""

    def __init__(self, url: str) -> None:
        self.seen: Counter[int] = Counter()
        self.torn: list[str] = []
        self._since: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        with Client(url) as client:
            readers = [
                client.create_reader(topic, MessageId.earliest)
                for topic in client.get_topic_partitions(OUTPUT)
            ]
            while not self._stop.is_set():
                for reader in readers:
                    try:
                        messages = reader.batch_read(1000, 20)
                    except PulsarError:
                        continue
                    for message in messages:
                        self._count(int(message.data().split()[0]))
                self._judge()

    def _count(self, row: int) -> None:
        self.seen[row] += 1
        self._since.setdefault(row // GROUP, time.monotonic())

    def is_whole(self, group: int) -> bool:
        return all(self.seen[row] for row in range(group * GROUP, (group + 1) * GROUP))

    def _judge(self) -> None:
        for group, since in list(self._since.items()):
            if self.is_whole(group):
                del self._since[group]
            elif time.monotonic() - since > WHOLE_S:
                self.torn.append(f"group {group}")
                del self._since[group]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Rounds:
    def __init__(self, folder: Path, kind: str, source: str, seed: int) -> None:
        self.kind, self.source, self.folder = kind, source, folder
        self.rng = random.Random(seed)
        self.groups = 0
        self.deaths: Counter[str] = Counter()
        self.driver_starts = 0
        (folder / "input").mkdir()
        config = folder / "broker.conf"
        config.write_text("brokerDeleteInactiveTopicsEnabled=false\n")
        log = (folder / "broker.log").open("wb")
        self.broker = BrokerProcess(folder / "data", ["--config", str(config)], log)
        self.cluster = Cluster(folder)
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.broker.start()
        self._note_broker()
        for topic in (OUTPUT, INPUT):
            create_partitioned(self.broker.admin_url, topic, 3)
        with Client(self.broker.service_url) as client:
            for topic in (OUTPUT, INPUT):
                client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest)
        self.observer = Observer(self.broker.service_url)
        self.cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_driver()
        self.observer.close()
        self.cluster.__exit__()
        self.broker.stop()

    def round(self) -> str:
        place = self.rng.choice(PLACES[self.kind])
        targets = ["driver", "broker"] + ["executor"] * 2 * place.startswith("task")
        target = self.rng.choice(targets)
        (self.folder / "done").unlink(missing_ok=True)
        (self.folder / f"order-{place}").write_text(target)
        groups = [self._add_group() for _ in range(2)]
        give_up_at = time.monotonic() + ROUND_S
        while not all(map(self.observer.is_whole, groups)):
            self._keep_alive()
            if time.monotonic() > give_up_at:
                raise AssertionError(f"stuck at {target} at {place}: see {self.folder}")
            time.sleep(0.1)
        done = self.folder / "done"
        label = done.read_text() if done.exists() else f"nobody at {place}"
        (self.folder / f"order-{place}").unlink(missing_ok=True)
        self.deaths[label] += 1
        return label

    def books(self) -> dict[str, int]:
        """The books, compared with the committed rows."""
        self._keep_alive()
        messages = read_all(self.broker.service_url, [OUTPUT])
        found = Counter(int(message.data().split()[0]) for message in messages)
        wanted = range(self.groups * GROUP)
        return {
            "rows": len(wanted),
            "missing": sum(not found[row] for row in wanted),
            "doubled": sum(count - 1 for count in found.values()),
            "torn": len(self.observer.torn),
            "kills": sum(n for label, n in self.deaths.items() if "nobody" not in label),
            "driver starts": self.driver_starts,
        }

    # --- restarts ---------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        process = self.broker._process
        if process is not None and process.poll() is not None:
            self.broker.kill()
            self.broker.start()
            self._note_broker()
        if self._driver is None or self._driver.poll() is not None:
            self._start_driver()

    def _note_broker(self) -> None:
        (self.folder / "broker.pid").write_text(str(self.broker.pid))

    def _start_driver(self) -> None:
        here = Path(__file__).parent
        self.driver_starts += 1
        environment = {
            **os.environ,
            "KILL_FOLDER": str(self.folder),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]),
        }
        arguments = [self.cluster.url, self.kind, self.source, self.broker.service_url]
        with (self.folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, str(here / "spark_kill_driver.py"), *arguments, str(self.folder)],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _stop_driver(self) -> None:
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def _add_group(self) -> int:
        group, self.groups = self.groups, self.groups + 1
        lines = [f"{row} {PADDING}" for row in range(group * GROUP, (group + 1) * GROUP)]
        if self.source == "files":
            hidden = self.folder / f"group-{group:05}"
            hidden.write_text("\n".join(lines))
            hidden.rename(self.folder / "input" / f"group-{group:05}.txt")
        else:
            self._publish([Outgoing(line.encode()) for line in lines])
        return group

    def _publish(self, messages: list[Outgoing]) -> None:
        self._keep_alive()
        with Client(self.broker.service_url) as client:
            topic = self.rng.choice(client.get_topic_partitions(INPUT))
            client.create_producer(topic).send_batch(encode_batch(messages))


def run(rounds: int, kind: str, source: str, seed: int, folder: Path) -> dict[str, int]:
    with Rounds(folder, kind, source, seed) as world:
        for number in range(rounds):
            started = time.monotonic()
            label = world.round()
            print(f"{number + 1:3} {label:32} {time.monotonic() - started:6.1f} s", flush=True)
        return world.books()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kind", choices=["sink", "foreach"], default="sink")
    parser.add_argument("--source", choices=["files", "pulsar"], default="files")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.kind} from {options.source}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="spark-kills-"))
    books = run(options.rounds, options.kind, options.source, options.seed, folder)
    print(books)
    sys.exit(bool(books["missing"] or books["doubled"] or books["torn"]))


if __name__ == "__main__":
    main()
