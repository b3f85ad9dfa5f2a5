"""The table of policies is true about broker.conf, shapes and names."""

import pytest
from rows import check_each

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.kinds import BadPolicy
from pybroker.broker.policies.policy import Policy
from pybroker.broker.policies.shapes import SIZE
from pybroker.broker.policies.table import (
    AUTO_TOPIC_CREATION,
    BACKLOG_QUOTAS,
    POLICIES,
    RETENTION,
    check_together,
)

ONE_BROKER = BrokerConfig()
# Policies that no setting of broker.conf mentions.
UNSAID = {
    "autoTopicCreation",  # even without partitioning it has a number of partitions
    "offloadPolicies",
    "antiAffinity",
    "resourcegroup",
    "schemaAutoUpdateCompatibilityStrategy",
    "offloadDeletionLagMs",
    "persistence/bookieAffinity",
}


def named(policy: Policy[object]) -> str:
    return policy.name


def test_names_and_fields_are_given_once() -> None:
    assert len({policy.name for policy in POLICIES}) == len(POLICIES) > 40
    for level in ("namespace", "topic"):
        levels = [getattr(p, level) for p in POLICIES if getattr(p, level) is not None]
        assert len({at.field for at in levels}) == len(levels)
        assert len({at.path for at in levels if not at.by_hand}) == sum(
            not at.by_hand for at in levels
        )


def test_what_the_broker_says_is_a_value_of_the_policy() -> None:
    def check(policy: Policy[object]) -> None:
        value = policy.of_broker(ONE_BROKER)
        if policy.name not in UNSAID:
            assert policy.check(value) == value

    check_each(POLICIES, check, named)


@pytest.mark.parametrize("value", [object(), 2**70, float("nan"), "x" * 100_000, [{}], {"": []}])
def test_what_is_no_value_is_refused_in_a_sentence(value: object) -> None:
    def check(policy: Policy[object]) -> None:
        try:
            policy.check(value)
        except BadPolicy as error:
            assert len(str(error)) < 300
        else:
            assert policy.check is not None and len(str(value)) < 100

    check_each(POLICIES, check, named)


def test_a_value_comes_back_complete() -> None:
    quota = BACKLOG_QUOTAS.check({SIZE: {"limit": 7, "policy": "producer_exception"}})
    complete = {"limit": 7, "limitSize": 7, "limitTime": -1, "policy": "producer_exception"}
    assert quota == {SIZE: complete}
    assert AUTO_TOPIC_CREATION.check({"allowAutoTopicCreation": False}) == {
        "allowAutoTopicCreation": False
    }


def test_retention_must_exceed_the_backlog_quota() -> None:
    quotas = BACKLOG_QUOTAS.check(
        {SIZE: {"limitSize": 2 * 1024**2, "policy": "producer_exception"}}
    )
    for megabytes, refused in ((1, True), (2, True), (3, False), (-1, False)):
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": megabytes}
        together = {RETENTION.name: RETENTION.check(retention), BACKLOG_QUOTAS.name: quotas}
        if refused:
            with pytest.raises(BadPolicy):
                check_together(together)
        else:
            check_together(together)
