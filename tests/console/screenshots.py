"""`make screenshots`: pictures of the console's pages for docs/images, light and dark."""

import base64
import random
import sys
import time
from pathlib import Path
from typing import Final

from shown_broker import PATHS, chromium, colour, show, shown_broker

from pybroker.client import Client
from pybroker.testing import RunningBroker

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
_FORMAT: Final = {"format": "webp", "quality": 60}  # a fifth of a PNG
_SIZE: Final = (1280, 800)
_FIGURES_S: Final = 30.0  # until the charts have data


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
        for name, path in PATHS.items():
            show(driver, broker.admin_url + path, *_SIZE)
            if name == "overview":
                _be_busy(broker)
            for scheme in ("light", "dark"):
                colour(driver, dark=scheme == "dark")
                shot = driver.execute_cdp_cmd("Page.captureScreenshot", _FORMAT)
                file = FOLDER / f"console-{name}-{scheme}.webp"
                file.write_bytes(base64.b64decode(shot["data"]))
                print(f"docs/images/{file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
