"""A page of the app in a real browser, and the check of its accessibility."""

from pathlib import Path

import pytest
from test_server import column

from browsing import all_of, colour_scheme, one, size, until

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
_RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21aa"] }).then(done);
"""
SCREENS = ((1300, "light"), (1300, "dark"), (390, "light"), (390, "dark"))  # the width, and the colour scheme


class Page:
    """A page of a served run."""

    def __init__(self, browser, client):
        self.browser, self.client = browser, client
        self.load()

    @classmethod
    def of(cls, browser, client):
        """The page that the browser shows already."""
        found = cls.__new__(cls)
        found.browser, found.client = browser, client
        return found

    def load(self):
        size(self.browser, 1300, 900)
        colour_scheme(self.browser, "light")
        self.browser.get(self.client.link)
        until(lambda: self.browser.execute_script("return document.body.dataset.ready === 'yes'"))
        self.browser.get_log("browser")

    def state(self):
        found = self.client.get("api/state")
        return [c["name"] for c in found["categories"]], column(found["category"], "<i4"), column(found["status"], "u1")

    def show(self, key):
        self.browser.execute_script("document.querySelector(`[data-set='${arguments[0]}']`).click()", str(key))
        until(lambda: all_of(self.browser, f".set[data-set='{key}'][aria-pressed='true']"))

    def cells(self):
        """The cells in the order of the screen."""
        found = "return [...document.querySelectorAll('.grid .cell')].sort((a, b) => a.position - b.position)"
        return self.browser.execute_script(found)

    def images(self):
        return [int(cell.get_attribute("data-image")) for cell in self.cells()]

    def selected(self):
        text = (
            one(self.browser, "#selected-count").text if all_of(self.browser, "#selection-bar:not([hidden])") else "0"
        )
        return int(text.split()[0].replace(",", ""))

    def text(self, selector):
        """Of an element that may be drawn again at any moment."""
        script = "const found = document.querySelector(arguments[0]); return found ? found.textContent.trim() : ''"
        return self.browser.execute_script(script, selector)

    def said(self, text):
        until(lambda: text in self.text("#message"))

    def click(self, selector):
        one(self.browser, selector).click()

    def tab(self, name):
        self.browser.execute_script("location.hash = arguments[0]", f"#{name}")


def is_accessible(browser, what):
    """axe-core finds no violation of WCAG AA in what the browser shows, and nothing is wider than the screen."""
    if not browser.execute_script("return typeof axe === 'object'"):
        browser.execute_script(AXE.read_text())
    found = browser.execute_async_script(_RUN_AXE)
    problems = [(v["id"], [node["html"][:160] for node in v["nodes"][:3]]) for v in found["violations"]]
    assert problems == [], (what, problems)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), what


def on_screens(browser):
    """Each of `SCREENS`, one after another."""
    if not AXE.is_file():
        pytest.skip("needs axe-core: npm install --no-save axe-core")
    for width, scheme in SCREENS:
        size(browser, width, 860)
        colour_scheme(browser, scheme)
        yield width, scheme
