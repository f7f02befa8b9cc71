"""Pages of the app in a real browser: the report live, the list of runs, the first fit, bad input, accessibility."""

import json
import shutil

import numpy as np
import pytest
from app_page import Page, is_accessible, on_screens
from serving import Client, served
from test_first_fit import hub, photos  # noqa: F401

from browsing import all_of, keys, one, size, until
from promptcal.app.hub import Hub
from promptcal.app.server import bound_server
from promptcal.run.assignments import Assignments
from promptcal.run.directory import RunDirectory
from promptcal.run.stored_run import StoredRun
from promptcal.runtime import files

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
VISIBLE = "return [...document.querySelectorAll(arguments[0])].some((element) => element.checkVisibility())"
PAGES = ("overview", "categories", "labels", "neighbours")  # of every run with labels


def is_ready(browser):
    return browser.execute_script("return document.body.dataset.ready === 'yes'")


def test_the_pages_of_the_report_follow_the_labels(page, browser, run_path, small_set):
    truth = [f"class {c}" for c in small_set[1]]
    directory = RunDirectory(run_path)
    directory.write_truth(StoredRun(run_path).assignments().paths, truth)
    page.load()
    for name in (*PAGES, "confusion"):
        page.tab(name)
        until(lambda name=name: browser.execute_script("return document.body.dataset.tab") == name)
        until(lambda: not all_of(browser, ".report-page .loading"), 60)
    page.tab("overview")
    until(lambda: "great tit" not in page.text(".sizes"))
    accuracy = page.text("#accuracy .final-result")
    for c, name in enumerate(sorted(set(truth))):  # half of the images of each class get their true label
        images = [i for i, label in enumerate(truth) if label == name][::2]
        page.client.act("create", name=f"true {c}", images=images)
    until(lambda: "true 3" in page.text(".sizes"), 30)
    assert page.text("#accuracy .final-result") != accuracy
    page.tab("confusion")
    until(lambda: "true 3" in page.text("#confusion-matrix"), 30)
    page.tab("categories")
    until(lambda: len(all_of(browser, ".report-page .card")) > 5)
    number = [c["name"] for c in page.client.get("api/state")["categories"]].index("true 3")
    one(browser, f".card a[href='#category-{number}']").click()
    until(lambda: page.text(".set-head h2") == "true 3")


def test_filters_by_stability_and_sharp_pictures_for_screens_with_two_pixels_by_point(browser, run_path):
    directory, stored = RunDirectory(run_path), StoredRun(run_path).assignments()
    stability = np.where(np.arange(48) % 4 == 0, 0.5, 0.9)
    found = Assignments(**{**vars(stored), "stability": stability})
    files.write_text(directory.assignments_file, found.to_csv())
    directory.update_info(sha256={})
    with served(run_path) as client:
        page = Page(browser, client)
        page.show("all")
        page.click("#filter-stability")
        expected = int(((stability < 0.8) & ~stored.labelled).sum())
        until(lambda: page.text("#counted") == f"{expected} of 48 images")
        assert one(browser, ".cell img").get_attribute("src").endswith("/320")
        metrics = {"width": 1300, "height": 900, "deviceScaleFactor": 2, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.show("none")
        page.show("all")
        until(lambda: one(browser, ".cell img").get_attribute("src").endswith("/640"))


def test_every_view_and_dialog_is_accessible_in_light_and_dark_and_on_a_phone(page):
    browser = page.browser

    def opened(show, selector, close=True):
        show()
        until(lambda: browser.execute_script(VISIBLE, selector), 60)
        is_accessible(browser, (*screen, selector))
        if close:
            browser.execute_script("for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close()")

    for screen in on_screens(browser):
        page.tab("label")
        page.show("all")
        is_accessible(browser, (*screen, "all images"))
        page.cells()[0].click()
        opened(lambda: one(browser, "#label-selected").send_keys("c"), ".completions .option")
        one(browser, "#label-selected").clear()
        opened(lambda: browser.execute_script("document.querySelector('#show-help').click()"), "#help[open]")
        page.show(2)
        opened(lambda: page.click("#merge"), "#dialog[open] #merge-into")
        opened(lambda: page.click("#split"), "#dialog[open] .part")
        browser.execute_script("document.querySelector('.cell .enlarge').click()")
        opened(lambda: None, "#viewer[open] .large-picture")
        page.show("suggestions")
        is_accessible(browser, (*screen, "suggestions"))
        opened(lambda: page.tab("map"), "#map-canvas")
        opened(lambda: page.tab("refit"), "#quick-refit")
        opened(lambda: page.tab("files"), "#export-csv")
        for name in PAGES:
            opened(lambda name=name: page.tab(name), f"body[data-tab='{name}'] .report-page > section")


def test_every_page_of_the_report_is_accessible_and_opened_by_keyboard(browser, continued_run, tmp_path):
    with served(shutil.copytree(continued_run, tmp_path / "run")) as client:
        Page(browser, client)
        names = [*PAGES[:2], "changes", *PAGES[2:], "confusion", "training", "attention"]
        assert sorted(link.get_attribute("data-tab") or "" for link in all_of(browser, "#tabs a")) == sorted(
            [*names, "label", "map", "refit", "files", ""]
        )
        for name in names:
            one(browser, f"#tabs [data-tab='{name}']").send_keys(Keys.ENTER)
            until(lambda name=name: all_of(browser, f"body[data-tab='{name}'] .report-page > section"), 60)
            for screen in on_screens(browser):
                is_accessible(browser, (*screen, name))
            size(browser, 1300, 900)


def test_the_list_of_runs_says_what_is_wrong_with_each(browser, run_path):
    folder = run_path.parent
    shutil.copytree(run_path, folder / "second <b>run")
    for name in ("broken", "newer", "unfinished", "training"):
        shutil.copytree(run_path, folder / name)
    (folder / "broken" / "run.json").write_text("{")
    newer = folder / "newer" / "run.json"
    newer.write_text(newer.read_text().replace('"format": ', '"format": 9'))
    RunDirectory(folder / "unfinished").update_info(status="running")
    RunDirectory(folder / "training").update_info(status="training")
    with served(folder) as client:
        size(browser, 1300, 900)
        browser.get(client.link)
        until(lambda: len(all_of(browser, ".run-row")) == 6)
        assert "token" not in browser.current_url
        text = {row.get_attribute("data-run"): row.text for row in all_of(browser, ".run-row")}
        assert "is damaged" in text["broken"]
        assert "upgrade promptcal" in text["newer"]
        assert "no result yet" in text["unfinished"]
        assert "in training" in text["training"]
        assert "48 images" in text["run"]
        assert [len(all_of(browser, f"[data-run='{name}'] a")) for name in ("broken", "newer", "unfinished")] == [0] * 3
        for screen in on_screens(browser):
            is_accessible(browser, screen)
        one(browser, "[data-run='second <b>run'] a").send_keys(Keys.ENTER)
        until(lambda: is_ready(browser))
        assert one(browser, "#title").text == "second <b>run"
        one(browser, "#home").click()
        until(lambda: len(all_of(browser, ".run-row")) == 6)


def test_images_that_are_gone_and_a_run_in_training_are_said_and_labelling_works(browser, run_path, tmp_path):
    RunDirectory(run_path).update_info(status="training", folder=str(tmp_path / "gone"))
    with served(run_path) as client:
        page = Page(browser, client)
        assert "Training is not finished" in page.text(".notices")
        assert "image files are not in" in page.text(".notices")
        page.show("all")
        until(lambda: all_of(browser, ".cell img.loaded"))  # stored thumbnails
        page.cells()[0].click()
        keys(browser, "1")
        page.said("1 image labelled as class 0.")
        page.tab("refit")
        RunDirectory(run_path).update_info(status="finished", folder=str(tmp_path / "gone"))
        client.post("api/refit/quick", status=400)  # the run has another result now
        browser.refresh()
        until(lambda: "new result" in page.text("#problem"), 30)
        page.click("#reload")
        until(lambda: is_ready(browser) and "Training" not in page.text(".notices"), 30)


def test_a_full_disk_is_said_and_the_page_shows_nothing_that_was_not_saved(browser, run_path):
    shown = Hub(run_path)
    with served(shown) as client:
        page = Page(browser, client)
        page.show("all")
        before = page.state()[2].tolist()
        connection = shown.workspace("run").store._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        random = np.random.default_rng(0)
        for _ in range(200):
            name = "".join(map(chr, random.integers(0x4E00, 0x9FFF, 190)))
            status = client.ask("POST", f"{client.page}api/action", {"kind": "rename", "category": 2, "name": name})[0]
            if status == 507:
                break
        page.cells()[0].click()
        keys(browser, "0")
        page.said("was not saved; free some space and do it again")
        assert page.selected() == 1  # so that it can be done again
        assert page.state()[2].tolist() == before
        connection.execute("PRAGMA max_page_count = 100000")
        keys(browser, "0")
        page.said("1 image marked as none of these.")
        browser.get_log("browser")


def test_a_page_that_was_cut_off_connects_again_and_loads_what_it_missed(browser, run_path):
    shown = Hub(run_path)
    with served(shown) as client:
        page = Page(browser, client)
        shown.workspace("run").events.end()  # as after sleep
        client.act("rename", category=2, name="great tit")
        until(lambda: page.text("[data-set='2'] .set-name") == "great tit", 30)
        assert page.text("#problem") == ""
    until(lambda: "cannot be reached" in page.text("#problem"), 30)
    again = Hub(run_path)
    with bound_server(again, port=client.port) as server, _running(server, again):
        until(lambda: "has a new token. Open the link" in page.text("#problem"), 30)
        page.client = Client(server.link)
        page.load()
        assert page.text("[data-set='2'] .set-name") == "great tit"
    browser.get_log("browser")


def _running(server, shown):
    from contextlib import ExitStack
    from threading import Thread

    thread = Thread(target=server.run)
    thread.start()
    stack = ExitStack()
    stack.callback(shown.close)
    stack.callback(thread.join, 20)
    stack.callback(server.stop)
    return stack


def test_a_folder_is_fitted_from_the_browser_and_its_first_result_is_labelled(browser, photos, quick_settings):  # noqa: F811
    with served(hub(photos, settings=(*quick_settings, "warmup.epochs=30"))) as client:
        size(browser, 1300, 900)
        browser.get(client.link)
        one(browser, "body[data-phase='asking']")
        page = Page.of(browser, client)
        assert "48" in page.text("#images")
        assert "class 0" in page.text(".classes")
        for screen in on_screens(browser):
            is_accessible(browser, screen)
        size(browser, 1300, 900)
        one(browser, "#n-classes").clear()
        one(browser, "#n-classes").send_keys("5", Keys.ENTER)
        one(browser, "#fit [role='progressbar']")
        until(lambda: all_of(browser, "#open-run"), 90)
        is_accessible(browser, "fit")
        one(browser, "#open-run").click()
        until(lambda: is_ready(browser), 30)
        until(lambda: "Training goes on" in page.text("#fit-bar"))
        page.show("all")
        page.cells()[20].click()
        keys(browser, "1")
        page.said("labelled as class 0")
        one(browser, "#home").click()
        one(browser, "#cancel").click()
        until(lambda: "The fit was cancelled." in page.text("#fit-problem"), 60)
        assert one(browser, "#resume").text == "Continue it"
        is_accessible(browser, "cancelled")
    assert json.loads((photos.parent / "photos-run" / "run.json").read_text())["status"] == "training"
    browser.get_log("browser")
