"""Ends that take long to take effect, as if transactions had many acknowledgements."""

import asyncio
import random
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from sim_scenario import Scenario

from features.feature import Feature
from pybroker.transaction.pending_acks import applying
from pybroker.transaction.pending_acks.applying import Applying

KINDS: Final = ("Exclusive", "Failover", "Shared", "KeyShared")
A_PIECE_S: Final = 0.1


class LongEnds(Feature):
    """Each piece of an end is one entry, with other work in between. The subscriptions' logs are
    rewritten all the time.
    """

    name = "long ends"
    _patches: tuple[Any, ...] = ()

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(
            scenario,
            transformers=scenario.transformers or (rng.choice(KINDS),),
            pending_ack_log_entries=rng.choice((1, 3, 10)),
        )

    def begin(self) -> None:
        def take_turn(self: Applying) -> None:
            if not self._has_turn:
                self._has_turn = True
                asyncio.get_running_loop().call_later(A_PIECE_S, self._turn)

        self._patches = (
            patch.object(applying, "PIECE", 1),
            patch.object(applying, "APPLIED_A_TURN", 1),
            patch.object(Applying, "_take_turn", take_turn),
        )
        for each in self._patches:
            each.start()

    def end(self) -> None:
        for each in self._patches:
            each.stop()


FEATURES = (LongEnds,)
