"""Schemas of policies, generated from their table: all policies of a namespace, and single ones."""

from typing import Any, Final

from pybroker.admin.operation import NOTHING, Answer, Body
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import (
    COUNT,
    TEXT,
    TRUTH,
    Schema,
    any_of,
    choice,
    exactly,
    list_of,
    map_of,
    or_null,
    record,
    taken,
)
from pybroker.broker.policies.policy import Level, Policy
from pybroker.broker.policies.table import POLICIES
from pybroker.security.authorization import ACTIONS

_OF_NAMESPACE: Final = [(p.namespace, p.check) for p in POLICIES if p.namespace is not None]
_MAY_BE_LEFT_OUT: Final = tuple(
    level.field for level, _ in _OF_NAMESPACE if level.unset is None and not level.by_cluster
)

BUNDLES: Final = record("BundlesData", {"boundaries": TEXTS, "numBundles": COUNT})
ROLES: Final = map_of(TEXTS, most=None)
NAMESPACE_POLICIES: Final = record(
    "Policies",
    {
        "replication_clusters": TEXTS,
        "bundles": BUNDLES,
        "deleted": TRUTH,
        "migrated": TRUTH,
        "auth_policies": record(
            "AuthPolicies",
            {
                "namespace_auth": ROLES,
                "destination_auth": map_of(ROLES, most=None),
                "subscription_auth_roles": ROLES,
            },
        ),
        **{
            level.field: map_of(check.gives, most=None) if level.by_cluster else check.gives
            for level, check in _OF_NAMESPACE
        },
    },
    _MAY_BE_LEFT_OUT,
)
_ROLES_TAKEN: Final = or_null(map_of(or_null(list_of(choice(*ACTIONS)))))
AUTH_POLICIES_TAKEN: Final = taken(
    {
        "namespace_auth": _ROLES_TAKEN,
        "destination_auth": map_of(_ROLES_TAKEN),
        "subscription_auth_roles": map_of(or_null(list_of(TEXT))),
    },
    title="AuthPoliciesTaken",
)
NAMESPACE_POLICIES_TAKEN: Final = taken(
    {
        "auth_policies": AUTH_POLICIES_TAKEN,
        **{
            level.field: map_of(check.takes) if level.by_cluster else check.takes
            for level, check in _OF_NAMESPACE
        },
    },
    title="PoliciesTaken",
)


def answers(policy: Policy[Any], level: Level) -> tuple[Answer, ...]:
    """The answers to GET: the value, or the level's answer if the policy is not set."""
    gives = policy.check.gives
    if level.unset is None:
        return Answer(gives), NOTHING
    return (Answer(any_of(gives, exactly(level.unset))),)


def body(policy: Policy[Any], level: Level) -> Body | None:
    """The body that sets a policy; null or none removes it. The policy's own check validates it."""
    if level.by_query:
        return None
    if level.bare:
        return Body(TEXT, required=False, misfit=None, media="text/plain")
    return Body(or_null(policy.check.takes), required=False, misfit=None)


def value_query(policy: Policy[Any], level: Level) -> dict[str, Schema]:
    return {level.path: policy.check.takes} if level.by_query else {}
