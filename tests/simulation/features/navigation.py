"""A consumer that seeks, unsubscribes and resubscribes; its position must be exact, even if the
broker crashes just after the answer.
"""

from typing import Final

from checks.history import Logs
from checks.positions import position_violations
from clients.navigator import Navigator

from features.feature import Feature, half_way

TOPIC: Final = "persistent://public/default/one"
CRASH_CHANCE: Final = 0.15


class Navigation(Feature):
    name = "navigation"

    def begin(self) -> None:
        self.navigator = Navigator(
            self.world,
            self.history,
            "navigator",
            topic=TOPIC,
            after_a_seek=self._after_a_seek,
            end_of_log=lambda: self.broker.end_of(TOPIC),
        )
        self.simulation.others.append(self.navigator)

    def _after_a_seek(self) -> None:
        if self.broker.serving and self.rng.random() < CRASH_CHANCE:
            self.count("crashes after a seek")
            self.broker.crash(half_way(self.rng))

    def account(self, logs: Logs) -> list[str]:
        left = self.simulation.left_on_subscription(self.navigator)
        assert self.broker.node is not None
        times = self.world.call(self.broker.node, self.broker.times_in(TOPIC))
        return position_violations(self.navigator, logs[TOPIC], left, times)


FEATURES: Final = (Navigation,)
