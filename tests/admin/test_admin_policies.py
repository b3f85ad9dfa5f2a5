"""Every policy through its routes: set, shown, applied, removed; and in a namespace's body."""

from typing import Any

import httpx
import pytest

from pybroker.broker.policies.policy import Level, Policy
from pybroker.broker.policies.shapes import AGE, SIZE
from pybroker.broker.policies.table import POLICIES

N = "/admin/v2/namespaces"
P = "/admin/v2/persistent"
# A value for each policy that is neither a number nor a flag nor a possibly empty record.
VALUES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7},
    "autoTopicCreation": {"allowAutoTopicCreation": False},
    "schemaCompatibilityStrategy": "BACKWARD",
    "schemaAutoUpdateCompatibilityStrategy": "Full",
    "subscriptionTypesEnabled": ["Shared", "Failover"],
    "subscriptionAuthMode": "Prefix",
    "antiAffinity": "group",
    "allowedClusters": ["standalone"],
    "persistence/bookieAffinity": {"bookkeeperAffinityGroupPrimary": "a"},
    "offloadPolicies": {"managedLedgerOffloadDriver": "S3"},
    "properties": {"owner": "me"},
    "allowedTopicPropertyKeysForMetrics": ["owner"],
    "replication": ["standalone"],
    "shadowTopics": [],
    "transactionCoordinators": [0, 3],
    "transactionBuffer": "commitOrder",
}


def a_value(policy: Policy[Any]) -> Any:
    if policy.name in VALUES:
        return policy.check(VALUES[policy.name])
    for value in (7, True, {}):
        try:
            return policy.check(value)
        except Exception as error:
            refusal = error
    raise refusal


def put(admin: httpx.Client, level: Level, path: str, value: Any) -> httpx.Response:
    if level.by_query:
        return admin.request(level.verb, path, params={level.path: value})
    return admin.request(level.verb, path, json=value)


def rows(level: str) -> Any:
    found = [p for p in POLICIES if getattr(p, level) and not getattr(p, level).by_hand]
    return pytest.mark.parametrize("policy", found, ids=lambda policy: policy.name)


@rows("namespace")
def test_a_namespace_s_policy_is_set_shown_and_taken_back(
    admin: httpx.Client, namespace: str, policy: Policy[Any]
) -> None:
    level = policy.namespace
    assert level is not None
    path, value = f"{N}/{namespace}/{level.path}", a_value(policy)
    before = admin.get(path)
    assert before.status_code == (204 if level.unset is None else 200)
    assert put(admin, level, path, value).status_code == 204
    assert admin.get(path).json() == value
    shown = admin.get(f"{N}/{namespace}").json()[level.field]
    assert shown == ({"standalone": value} if level.by_cluster else value)
    if level.removable:
        assert admin.delete(path).status_code == 204
        assert (admin.get(path).status_code, admin.get(path).text) == (
            before.status_code,
            before.text,
        )


@rows("topic")
def test_a_topic_s_policy_is_set_shown_applied_and_taken_back(
    admin: httpx.Client, topic: str, policy: Policy[Any]
) -> None:
    level = policy.topic
    assert level is not None
    path, value = f"{P}/{topic}/{level.path}", a_value(policy)
    applied = {"applied": "true"}
    of_broker = admin.get(path, params=applied)
    assert admin.get(path).status_code == 204
    assert put(admin, level, path, value).status_code == 204
    assert admin.get(path).json() == admin.get(path, params=applied).json() == value
    if level.removable:
        assert admin.delete(path).status_code == 204
        assert admin.get(path).status_code == 204
        assert admin.get(path, params=applied).text == of_broker.text


@rows("topic")
def test_a_topic_that_does_not_exist_has_no_policies(
    admin: httpx.Client, namespace: str, policy: Policy[Any]
) -> None:
    level = policy.topic
    assert level is not None
    path = f"{P}/{namespace}/none/{level.path}"
    assert admin.get(path).status_code == 404
    assert put(admin, level, path, a_value(policy)).status_code == 404


def test_what_a_namespace_says_holds_for_its_topics(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    assert admin.post(f"{N}/{namespace}/messageTTL", json=11).status_code == 204
    path = f"{P}/{topic}/messageTTL"
    assert admin.get(path).status_code == 204
    assert admin.get(path, params={"applied": "true"}).json() == 11


def test_a_policy_for_all_clusters_counts_less_than_the_topic_s_own(
    admin: httpx.Client, topic: str
) -> None:
    path, everywhere = f"{P}/{topic}/maxProducers", {"isGlobal": "true"}
    assert admin.post(path, json=3, params=everywhere).status_code == 204
    assert admin.get(path).status_code == 204
    assert admin.get(path, params=everywhere).json() == 3
    assert admin.get(path, params={"applied": "true"}).json() == 3
    assert admin.post(path, json=2).status_code == 204
    assert admin.get(path, params={"applied": "true"}).json() == 2


def test_all_policies_of_a_topic_are_taken_back_at_once(admin: httpx.Client, topic: str) -> None:
    for path, value in (("maxProducers", 3), ("maxConsumers", 4)):
        assert admin.post(f"{P}/{topic}/{path}", json=value).status_code == 204
    assert admin.delete(f"{P}/{topic}/policies").status_code == 204
    assert admin.get(f"{P}/{topic}/maxProducers").status_code == 204
    assert admin.get(f"{P}/{topic}/maxConsumers").status_code == 204


def test_backlog_quotas_are_set_by_type(admin: httpx.Client, namespace: str, topic: str) -> None:
    for base in (f"{N}/{namespace}", f"{P}/{topic}"):
        quota, shown = f"{base}/backlogQuota", f"{base}/backlogQuotaMap"
        assert admin.get(shown).json() == {}
        size = {"limitSize": 10, "policy": "producer_exception"}
        age = {"limitTime": 20, "policy": "consumer_backlog_eviction"}
        assert admin.post(quota, json=size).status_code == 204
        assert admin.post(quota, json=age, params={"backlogQuotaType": AGE}).status_code == 204
        found = admin.get(shown).json()
        assert found[SIZE] == {"limit": 10, "limitTime": -1} | size
        assert found[AGE] == {"limit": -1, "limitSize": -1} | age
        assert admin.delete(quota).status_code == 204
        assert list(admin.get(shown).json()) == [AGE]
        assert admin.delete(quota, params={"backlogQuotaType": AGE}).status_code == 204
        assert admin.get(shown).json() == {}
        assert admin.post(quota, json={"limitSize": 10}).status_code == 412
        assert admin.post(quota, json=size, params={"backlogQuotaType": "x"}).status_code == 400
    applied = admin.get(f"{P}/{topic}/backlogQuotaMap", params={"applied": "true"}).json()
    assert applied[SIZE]["limitSize"] == -1
    assert applied[SIZE]["policy"] == "producer_request_hold"


def test_retention_must_exceed_the_backlog_quota(admin: httpx.Client, namespace: str) -> None:
    quota = {"limitSize": 5 * 1024**2, "policy": "producer_exception"}
    small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}
    large = small | {"retentionSizeInMB": 6}
    assert admin.post(f"{N}/{namespace}/backlogQuota", json=quota).status_code == 204
    assert admin.post(f"{N}/{namespace}/retention", json=small).status_code == 412
    assert admin.post(f"{N}/{namespace}/retention", json=large).status_code == 204
    raised = quota | {"limitSize": 6 * 1024**2}
    assert admin.post(f"{N}/{namespace}/backlogQuota", json=raised).status_code == 412


def test_the_dispatch_rate_of_one_subscription(admin: httpx.Client, topic: str) -> None:
    path, other = f"{P}/{topic}/mine/dispatchRate", f"{P}/{topic}/other/dispatchRate"
    assert admin.get(path).status_code == 204
    assert admin.post(path, json={"dispatchThrottlingRateInMsg": 5}).status_code == 204
    assert admin.get(path).json()["dispatchThrottlingRateInMsg"] == 5
    assert admin.get(other).status_code == 204
    assert admin.get(other, params={"applied": "true"}).json()["dispatchThrottlingRateInMsg"] == 0
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 204


def test_a_namespace_s_body_carries_policies(admin: httpx.Client) -> None:
    name = "public/with-policies"
    body = {
        "message_ttl_in_seconds": 12,
        "retention_policies": {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4},
        "topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 9}},
        "backlog_quota_map": {SIZE: {"limitSize": 9, "policy": "producer_exception"}},
        "bundles": {"numBundles": 4},
        "unheard_of": 1,
    }
    assert admin.put(f"{N}/{name}", json=body).status_code == 204
    assert admin.get(f"{N}/{name}/messageTTL").json() == 12
    assert admin.get(f"{N}/{name}/retention").json() == body["retention_policies"]
    assert admin.get(f"{N}/{name}/dispatchRate").json()["dispatchThrottlingRateInMsg"] == 9
    assert admin.get(f"{N}/{name}/backlogQuotaMap").json()[SIZE]["limitSize"] == 9
    wrong = {"message_ttl_in_seconds": "long"}
    assert admin.put(f"{N}/public/wrong", json=wrong).status_code == 400
    assert admin.get(f"{N}/public/wrong").status_code == 404


def test_single_properties_of_a_namespace(admin: httpx.Client, namespace: str) -> None:
    base = f"{N}/{namespace}/property"
    assert admin.put(f"{base}/owner/me").status_code == 204
    assert admin.put(f"{base}/colour/red").status_code == 204
    assert admin.get(f"{base}/owner").text == "me"
    assert admin.get(f"{N}/{namespace}/properties").json() == {"owner": "me", "colour": "red"}
    assert admin.delete(f"{base}/owner").text == "me"
    assert admin.get(f"{N}/{namespace}/properties").json() == {"colour": "red"}


def test_a_namespace_is_replicated_to_this_cluster_only(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{N}/{namespace}/replication"
    assert admin.get(path).json() == ["standalone"]
    assert admin.post(path, json=["standalone"]).status_code == 204
    assert admin.post(path, json=["mars"]).status_code == 412


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("messageTTL", -1, 412),
        ("messageTTL", "soon", 400),
        ("maxProducersPerTopic", -1, 412),
        ("maxTopicsPerNamespace", 2**31, 412),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}, 412),
        ("retention", [], 400),
        ("schemaCompatibilityStrategy", "SOME", 400),
        ("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2}, 400),
        ("subscriptionTypesEnabled", ["Square"], 400),
    ],
)
def test_a_wrong_value_is_refused(
    admin: httpx.Client, namespace: str, path: str, body: Any, status: int
) -> None:
    verb = "PUT" if path == "schemaCompatibilityStrategy" else "POST"
    answer = admin.request(verb, f"{N}/{namespace}/{path}", json=body)
    assert (answer.status_code, "reason" in answer.json()) == (status, True)
    assert answer.json()["reason"]


@pytest.mark.parametrize("value", ["1e999", "-1e999", "[" * 962 + "]" * 962])
def test_what_could_not_be_shown_again_is_not_kept(
    admin: httpx.Client, namespace: str, value: str
) -> None:
    path = f"{N}/{namespace}"
    refused = admin.post(f"{path}/offloadPolicies", content=f'{{"a": {value}}}')
    assert (refused.status_code, "The body is not JSON" in refused.text) == (400, True)
    deep = "[" * 199 + "]" * 199
    assert admin.post(f"{path}/offloadPolicies", content=f'{{"a": {deep}}}').status_code == 204
    assert admin.get(path).status_code == 200
    assert admin.put(f"{P}/{namespace}/t").status_code == 204


def test_numbers_may_be_sent_as_text(admin: httpx.Client, topic: str, namespace: str) -> None:
    of_namespace, of_topic = f"/admin/v2/namespaces/{namespace}", f"/admin/v2/persistent/{topic}"
    quota = {"limit": "10240", "policy": "producer_request_hold"}
    rate = {"dispatchThrottlingRateInMsg": "5", "relativeToPublishRate": "true"}
    for path, body in (
        (f"{of_namespace}/backlogQuota", quota),
        (f"{of_namespace}/maxTopicsPerNamespace", "7"),
        (f"{of_namespace}/dispatchRate", rate),
        (f"{of_namespace}/encryptionRequired", "false"),
        (f"{of_topic}/maxProducers", "3"),
        (f"{of_topic}/retention", {"retentionTimeInMinutes": "1", "retentionSizeInMB": "-1"}),
        (f"{of_topic}/persistence", {"managedLedgerMaxMarkDeleteRate": "0.5"}),
    ):
        answer = admin.post(path, json=body)
        assert answer.status_code == 204, (path, answer.text)
    assert admin.get(f"{of_namespace}/maxTopicsPerNamespace").json() == 7
    assert admin.get(f"{of_topic}/maxProducers").json() == 3
    assert (
        admin.get(f"{of_namespace}/backlogQuotaMap").json()["destination_storage"]["limit"] == 10240
    )
    assert admin.get(f"{of_namespace}/dispatchRate").json()["relativeToPublishRate"] is True
    assert admin.put(f"{of_topic}-p/partitions", json="3").status_code == 204
    assert admin.get(f"{of_topic}-p/partitions").json()["partitions"] == 3
    assert admin.post(f"{of_topic}-p/partitions", json="three").status_code == 406


def test_a_new_namespace_takes_numbers_as_text(admin: httpx.Client, namespace: str) -> None:
    path = f"/admin/v2/namespaces/{namespace}-text"
    rate = {"standalone": {"publishThrottlingRateInMsg": "9"}}
    limits = {"max_producers_per_topic": "2", "publishMaxMessageRate": rate}
    assert admin.put(path, json=limits).status_code == 204
    assert admin.get(f"{path}/maxProducersPerTopic").json() == 2
    assert admin.get(f"{path}/publishRate").json()["publishThrottlingRateInMsg"] == 9


def test_refusals_have_apaches_sentences_and_what_to_do_beside_them(
    admin: httpx.Client, topic: str, namespace: str
) -> None:
    of_namespace = f"{N}/{namespace}"
    created = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
    creation = "Invalid configuration for autoTopicCreationOverride. the detail is "
    needed = "[defaultNumPartitions] cannot be null when the type is partitioned."
    admin.put(f"{P}/{topic}-p/partitions", json=4)
    for answer, status, reason in (
        (admin.put(f"{P}/{topic}"), 409, "This topic already exists"),
        (admin.put(f"{P}/{topic}-p/partitions", json=4), 409, "This topic already exists"),
        (admin.get(f"{N}/public/nowhere/messageTTL"), 404, "Namespace does not exist"),
        (
            admin.post(f"{of_namespace}/subscriptionExpirationTime", json=-60),
            412,
            "Invalid value for subscription expiration time",
        ),
        (
            admin.post(f"{of_namespace}/maxTopicsPerNamespace", json=-1),
            412,
            "maxTopicsPerNamespace must be 0 or more",
        ),
        (
            admin.post(f"{of_namespace}/autoTopicCreation", json=created),
            412,
            creation + needed,
        ),
    ):
        assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    missing = admin.get(f"{N}/public/nowhere/messageTTL").json()
    assert "PUT /admin/v2/namespaces/public/nowhere" in missing["advice"]
