"""Each role sees and does in the console exactly what REST allows it."""

from typing import Any, Final

import httpx
import pytest
from browsing import Browser, words
from credentials import bearer, token
from permission_world import World

# Pages with the equivalent REST request; {ns} is tenant/namespace.
PAGES: Final = {
    "/console": "/metrics",
    "/console/topics?namespace={ns}": "/admin/v2/persistent/{ns}",
    "/console/topics/persistent/{ns}/t": "/admin/v2/persistent/{ns}/t/stats",
    "/console/topics/persistent/{ns}/t/messages": "/admin/v2/persistent/{ns}/t/partitions",
    "/console/topics/persistent/{ns}/t/live": "/admin/v2/persistent/{ns}/t/stats",
    "/console/topics/persistent/{ns}/t/messages/export": (
        "/admin/v2/persistent/{ns}/t/examinemessage?initialPosition=earliest"
    ),
    "/console/topics/persistent/{ns}/t/schemas": "/admin/v2/schemas/{ns}/t/schemas",
    "/console/topics/persistent/{ns}/t/policies": "/admin/v2/persistent/{ns}/t/retention",
    "/console/topics/persistent/{ns}/t/storage": "/admin/v2/persistent/{ns}/t/internalStats",
    "/console/topics/persistent/{ns}/t/subscriptions/s": "/admin/v2/persistent/{ns}/t/stats",
    "/console/connections": "/admin/v2/brokers/connections",
    "/console/tenants/{tenant}": "/admin/v2/namespaces/{tenant}",
    "/console/tenants/{ns}": "/admin/v2/namespaces/{ns}/permissions",
    "/console/configuration": "/admin/v2/brokers/configuration/runtime",
    "/console/logs": "/admin/v2/brokers/log",
}
# Forms, with their fields and the equivalent REST request. None of them destroys anything.
DEEDS: Final[tuple[tuple[str, dict[str, str], str, str, Any], ...]] = (
    (
        "/console/topics/persistent/{ns}/t/messages/send",
        {"payload": "x"},
        "POST",
        "/topics/persistent/{ns}/t",
        {"messages": [{"payload": "x"}]},
    ),
    (
        "/console/topics/persistent/{ns}/t/subscriptions/s/skip",
        {"count": "1", "sure": "1"},
        "POST",
        "/admin/v2/persistent/{ns}/t/subscription/s/skip/1",
        None,
    ),
    (
        "/console/topics/persistent/{ns}/t/unload",
        {},
        "PUT",
        "/admin/v2/persistent/{ns}/t/unload",
        None,
    ),
    (
        "/console/topics/persistent/{ns}/t/policies/set",
        {"policy": "messageTTL", "value": "60"},
        "POST",
        "/admin/v2/persistent/{ns}/t/messageTTL?messageTTL=60",
        None,
    ),
    (
        "/console/topics/persistent/{ns}/t/policies/remove",
        {"policy": "messageTTL"},
        "DELETE",
        "/admin/v2/persistent/{ns}/t/messageTTL",
        None,
    ),
    (
        "/console/tenants/{ns}/policies/set",
        {"policy": "messageTTL", "value": "60"},
        "POST",
        "/admin/v2/namespaces/{ns}/messageTTL",
        60,
    ),
    (
        "/console/tenants/{ns}/policies/remove",
        {"policy": "messageTTL"},
        "DELETE",
        "/admin/v2/namespaces/{ns}/messageTTL",
        None,
    ),
    (
        "/console/tenants/{ns}/grant",
        {"role": "guest", "consume": "1"},
        "POST",
        "/admin/v2/namespaces/{ns}/permissions/guest",
        ["consume"],
    ),
    (
        "/console/configuration/change",
        {"key": "ttlDurationDefaultInSeconds", "value": "60"},
        "POST",
        "/admin/v2/brokers/configuration/ttlDurationDefaultInSeconds/60",
        None,
    ),
)
ROLES: Final = ("admin", "boss", "writer", "reader", "nobody")
TITLES: Final = {
    "admin": {"Connections", "Configuration", "Logs"},
    "boss": set(),
    "writer": set(),
    "reader": set(),
    "nobody": set(),
}


@pytest.fixture
def there(world: World) -> World:
    """The world with its topic, a subscription and roles that may use them."""
    world.grant("writer", "produce")
    world.grant("reader", "consume")
    world.admin("PUT", world.on_topic())
    world.admin("PUT", world.on_topic("/subscription/s"), "earliest")
    return world


def in_world(text: str, world: World) -> str:
    return text.replace("{ns}", world.namespace).replace("{tenant}", world.tenant)


def is_refused(answer: httpx.Response) -> bool:
    return answer.status_code in (401, 403)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_sees_what_rest_shows_it(there: World, role: str) -> None:
    browser = Browser(there.broker.admin_url)
    assert browser.log_in(token(role)).status_code == 303
    for page, route in PAGES.items():
        rest = browser.http.get(in_world(route, there), headers=bearer(role))
        seen = browser.open(in_world(page, there))
        assert is_refused(seen) == is_refused(rest), (page, seen.status_code, rest.status_code)
        if not is_refused(rest):
            assert seen.status_code == 200, (page, words(seen.text))


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_what_rest_lets_it_do(there: World, role: str) -> None:
    browser = Browser(there.broker.admin_url)
    browser.log_in(token(role))
    form_token = browser.form_token("/console")
    for form, fields, method, route, body in DEEDS:
        rest = browser.http.request(method, in_world(route, there), json=body, headers=bearer(role))
        data = {"form_token": form_token, **fields}
        done = browser.http.post(in_world(form, there), data=data)
        assert done.status_code == 303
        said = browser.open("/console").text
        failed = 'class="notice failed"' in said
        assert failed == is_refused(rest), (form, words(said), rest.status_code)
        if failed:
            assert rest.json()["reason"].split(" for operation")[0] in words(said)


@pytest.mark.parametrize("role", ROLES)
def test_the_navigation_leaves_out_what_would_be_refused(there: World, role: str) -> None:
    browser = Browser(there.broker.admin_url)
    browser.log_in(token(role))
    page = browser.page("/console")
    shown = {title for title in TITLES["admin"] if f">{title}</a>" in page}
    assert shown == TITLES[role]


def test_what_is_done_stands_in_the_audit_log_once(
    there: World, caplog: pytest.LogCaptureFixture
) -> None:
    browser = Browser(there.broker.admin_url)
    browser.log_in(token("boss"))
    url = in_world("/console/topics/persistent/{ns}/t", there)
    with caplog.at_level("INFO", "pybroker.audit"):
        browser.do(f"{url}/unload", url)
    lines = [record.__dict__["fields"] for record in caplog.records]
    unloads = [each for each in lines if each["on"].endswith("/t/unload")]
    assert [(each["who"], each["result"]) for each in unloads] == [("boss", 204)]
    assert all("form_token" not in str(each) for each in lines)


def test_a_failed_login_stands_in_the_audit_log(
    there: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "pybroker.audit"):
        Browser(there.broker.admin_url).log_in("secret.wrong.token")
    lines = [record.__dict__["fields"] for record in caplog.records]
    (line,) = [each for each in lines if each["on"] == "/console/login"]
    assert line["result"] == 401
    assert "secret" not in str(line)
