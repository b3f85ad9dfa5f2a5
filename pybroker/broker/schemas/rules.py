"""The rules for a topic's schemas from its policies. UNDEFINED defers to the broker's strategy, or
to FULL.
"""

from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import (
    SCHEMA_AUTO_UPDATE,
    SCHEMA_AUTO_UPDATE_STRATEGY,
    SCHEMA_COMPATIBILITY,
    SCHEMA_ENFORCED,
)
from pybroker.broker.schemas.compatibility import Strategy
from pybroker.broker.schemas.registry import SchemaRules

_BY_OLDER_NAME: Final[dict[str | None, str]] = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


def schema_rules(policies: Effective) -> SchemaRules:
    older = _BY_OLDER_NAME.get(policies[SCHEMA_AUTO_UPDATE_STRATEGY])
    broker = policies.config.schema_compatibility_strategy
    strategy = _first_defined(policies.was_set(SCHEMA_COMPATIBILITY), older, broker)
    return SchemaRules(strategy, policies[SCHEMA_AUTO_UPDATE], policies[SCHEMA_ENFORCED])


def of_system_topics(config: BrokerConfig) -> SchemaRules:
    return SchemaRules(_first_defined(config.system_topic_schema_compatibility_strategy))


def _first_defined(*names: str | None) -> Strategy:
    defined = (Strategy(name) for name in names if name in Strategy.__members__)
    return next(defined, Strategy.FULL)
