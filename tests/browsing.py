"""A real browser in tests: its size, its colour scheme, its elements, and waiting for them."""

import time
from contextlib import suppress

import pytest

By = pytest.importorskip("selenium.webdriver.common.by").By
StaleElementReferenceException = pytest.importorskip("selenium.common.exceptions").StaleElementReferenceException
ActionChains = pytest.importorskip("selenium.webdriver").ActionChains


def size(browser, width, height):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def colour_scheme(browser, value):
    features = [{"name": "prefers-color-scheme", "value": value}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(holds, seconds=8):
    """Wait until ``holds()`` is true, and return its value. An element that is drawn again is looked for again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(StaleElementReferenceException):
            if found := holds():
                return found
        time.sleep(0.03)
    raise AssertionError("it did not become true")


def all_of(page, selector):
    return page.find_elements(By.CSS_SELECTOR, selector)


def one(page, selector):
    return until(lambda: all_of(page, selector))[0]


def keys(page, *pressed):
    ActionChains(page, duration=20).send_keys(*pressed).perform()
