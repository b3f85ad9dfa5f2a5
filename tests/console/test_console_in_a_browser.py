"""The console's pages in Chromium: no errors, no barriers, and no overflow on a small screen."""

from collections.abc import Iterator
from typing import Any

import pytest
from axe import axe_source
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from shown_broker import EVIL, PATHS, PAYMENTS, chromium, show, shown_broker

from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PHONE, SCREEN = (360, 800), (1440, 900)
PATIENCE_S = 30
SAMPLE = "document.getElementById('live').dataset.sample"
MAIN_TEXT = "document.getElementById('main')?.innerText ?? ''"
_SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def shown() -> Iterator[RunningBroker]:
    with shown_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def complaints(driver: webdriver.Chrome) -> list[str]:
    """Errors and refusals in the browser's console."""
    return [each["message"] for each in driver.get_log("browser") if each["level"] != "INFO"]


def in_page(driver: webdriver.Chrome, expression: str) -> Any:
    """The value of the expression, in one step: an element may be replaced after it was found."""
    return driver.execute_script(f"return {expression}")


def barriers(driver: webdriver.Chrome) -> list[str]:
    driver.execute_script(axe_source())
    found: dict[str, Any] = driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run().then(done, done)"
    )
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']][:3]}"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PATHS)
def test_a_page_works_for_everybody(
    shown: RunningBroker, driver: webdriver.Chrome, name: str, dark: bool
) -> None:
    for width, height in (PHONE, SCREEN):
        show(driver, shown.admin_url + PATHS[name], width, height, dark)
        assert driver.find_element(By.TAG_NAME, "h1").is_displayed()
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} wide"
        assert complaints(driver) == []
        assert barriers(driver) == []


def test_live_figures_come_by_themselves(shown: RunningBroker, driver: webdriver.Chrome) -> None:
    show(driver, shown.admin_url + "/console", *SCREEN)
    first = in_page(driver, SAMPLE)

    def has_changed(driver: webdriver.Chrome) -> bool:
        return in_page(driver, SAMPLE) != first

    WebDriverWait(driver, PATIENCE_S).until(has_changed)
    assert in_page(driver, "document.getElementById('live').dataset.stream"), "by the stream"
    assert len(driver.find_elements(By.CSS_SELECTOR, ".chart canvas")) == 4
    assert complaints(driver) == []


def test_the_figures_of_topics_follow_their_names(
    shown: RunningBroker, driver: webdriver.Chrome
) -> None:
    show(driver, shown.admin_url + "/console/topics", *SCREEN)

    def has_figures(driver: webdriver.Chrome) -> bool:
        return "KiB" in driver.find_element(By.TAG_NAME, "table").text

    WebDriverWait(driver, PATIENCE_S).until(has_figures)


def test_a_hostile_message_runs_nothing(shown: RunningBroker, driver: webdriver.Chrome) -> None:
    show(driver, shown.admin_url + PATHS["messages"], *SCREEN)
    assert EVIL in driver.find_element(By.TAG_NAME, "table").text
    assert driver.execute_script("return document.scripts.length") == 2
    assert complaints(driver) == []


def test_the_keyboard_reaches_the_page_first(
    shown: RunningBroker, driver: webdriver.Chrome
) -> None:
    show(driver, shown.admin_url + PAYMENTS, *SCREEN)
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = driver.switch_to.active_element
    assert skip.text == "Skip to the page"
    skip.send_keys(Keys.ENTER)
    assert driver.switch_to.active_element.get_attribute("id") == "main"


def test_a_form_is_sent_and_its_result_said(shown: RunningBroker, driver: webdriver.Chrome) -> None:
    show(driver, shown.admin_url + PAYMENTS, *SCREEN)
    driver.find_element(By.XPATH, "//summary[.='Create a subscription']").click()
    driver.find_element(By.NAME, "subscription").send_keys("by-hand")
    driver.find_element(By.XPATH, "//button[.='Create']").click()

    def is_said(driver: webdriver.Chrome) -> bool:
        return "Subscription by-hand was created" in in_page(driver, MAIN_TEXT)

    WebDriverWait(driver, PATIENCE_S).until(is_said)
    assert complaints(driver) == []


def test_a_button_keeps_the_focus_while_its_part_of_the_page_is_replaced(
    shown: RunningBroker, driver: webdriver.Chrome
) -> None:
    show(driver, shown.admin_url + PATHS["faults"], *SCREEN)
    number = shown.faults.rules[0].number
    button = f"release-{number}"
    driver.execute_script(
        "document.getElementById('live').dataset.old = 'old';"
        "document.getElementById(arguments[0]).focus()",
        button,
    )

    def is_replaced(driver: webdriver.Chrome) -> bool:
        return not in_page(driver, "document.getElementById('live').dataset.old")

    WebDriverWait(driver, PATIENCE_S).until(is_replaced)
    assert in_page(driver, "document.activeElement.id") == button
    ActionChains(driver).send_keys(Keys.ENTER).perform()

    def is_said(driver: webdriver.Chrome) -> bool:
        return f"Nothing waits at rule {number}" in in_page(driver, MAIN_TEXT)

    WebDriverWait(driver, PATIENCE_S).until(is_said)
    assert complaints(driver) == []
