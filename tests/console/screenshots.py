"""`make screenshots`: pictures of the console for docs/images."""

import random
import sys
import time
from pathlib import Path
from typing import Final

from shown_broker import PATHS, chromium, show, shown_broker

from pybroker.client import Client
from pybroker.testing import RunningBroker

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
NAMES: Final = ("overview", "topic", "messages", "transactions", "transaction")
_SIZE: Final = (1280, 800)
_FIGURES_S: Final = 30.0  # until the charts have something to show


def _be_busy(broker: RunningBroker) -> None:
    client = Client(broker.service_url)
    consumer = client.subscribe("clicks", "counter")
    producer = client.create_producer("clicks")
    end_s = time.monotonic() + _FIGURES_S
    while time.monotonic() < end_s:
        for number in range(random.randint(20, 60)):
            producer.send(b"click %d" % number)
            consumer.acknowledge(consumer.receive(5000))
        time.sleep(0.05)
    client.close()


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with shown_broker("daily") as broker, chromium() as driver:
        for name in NAMES:
            show(driver, broker.admin_url + PATHS[name], *_SIZE)
            if name == "overview":
                _be_busy(broker)
            driver.save_screenshot(str(FOLDER / f"console-{name}.png"))
            print(f"docs/images/console-{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
