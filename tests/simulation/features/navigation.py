"""A consumer that seeks, unsubscribes and comes again; its position must be exactly there."""

from typing import Final

from checks.positions import position_violations
from checks.promises import Logs
from clients.navigator import Navigator

from features.feature import Feature

TOPIC: Final = "persistent://public/default/one"


class Navigation(Feature):
    name = "navigation"

    def begin(self) -> None:
        self.navigator = Navigator(self.world, self.history, "navigator", topic=TOPIC)
        self.simulation.others.append(self.navigator)

    def account(self, logs: Logs) -> list[str]:
        left = self.simulation.left_on_subscription(self.navigator)
        return position_violations(self.navigator, logs[TOPIC], left)


FEATURES: Final = (Navigation,)
