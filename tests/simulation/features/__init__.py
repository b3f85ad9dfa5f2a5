"""What a seed does beyond the ordinary. Each enables a random handful, so that they meet: "swarm
testing". A module per subject, a class per feature.
"""

import random
from typing import Final

from features import copying, environment, hostility, names, navigation, rebirth, storage
from features.feature import Feature

ALL: Final[dict[str, type[Feature]]] = {
    feature.name: feature
    for module in (copying, environment, hostility, names, navigation, rebirth, storage)
    for feature in module.FEATURES
}
# What the broker is known not to withstand yet: drawn by no seed, enabled by name only.
NOT_YET: Final[tuple[str, ...]] = ("full disk",)


def draw(rng: random.Random) -> tuple[str, ...]:
    ready = [name for name in ALL if name not in NOT_YET]
    count = min(len(ready), rng.choice((0, 1, 1, 2, 2, 3, 4, 5)))
    return tuple(sorted(rng.sample(ready, count)))
