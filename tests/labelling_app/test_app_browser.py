"""The app in a real browser: every action, two tabs, a server that stops, names that try to be code."""

import csv
import io
import json
import time

import numpy as np
import pytest
from app_page import Page
from serving import served
from test_server import column

from browsing import ActionChains, all_of, keys, one, until
from promptcal import demo
from promptcal.app.hub import Hub
from promptcal.app.label_store import DiskFullError

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
SCRIPT = '<img src=x onerror="window.stolen=1"><script>window.stolen=2</script>'


def test_click_shift_click_drag_and_select_all_then_label_by_typing_digits_and_buttons(page):
    browser = page.browser
    page.show("all")
    cells, images = page.cells(), page.images()
    cells[1].click()
    ActionChains(browser).key_down(Keys.SHIFT).click(cells[4]).key_up(Keys.SHIFT).perform()
    assert page.selected() == 4
    one(browser, "#label-selected").send_keys("CLASS 1")
    assert one(browser, ".completions .option.on").text.startswith("class 1")
    one(browser, "#label-selected").send_keys(Keys.ENTER)
    page.said("4 images labelled as class 1.")
    names, category, status = page.state()
    assert [names[c] for c in category[images[1:5]]] == ["class 1"] * 4
    assert set(status[images[1:5]]) == {2}
    assert page.selected() == 0
    cells = page.cells()
    ActionChains(browser, duration=50).move_to_element_with_offset(cells[0], -60, -60).click_and_hold().move_to_element(
        cells[9]
    ).release().perform()
    assert page.selected() > 4
    keys(browser, Keys.ESCAPE)
    assert page.selected() == 0
    chosen = page.images()[6]
    page.cells()[6].click()
    keys(browser, "3")
    page.said("1 image labelled as new 1.")
    assert page.state()[1][chosen] == 2
    page.cells()[6].click()
    page.click("#none-of-these")
    page.said("1 image marked as none of these.")
    assert page.state()[1][chosen] == -1
    keys(browser, "u")
    page.said("Undone: mark 1 image as none of these.")
    assert page.state()[1][chosen] == 2
    page.click("#redo")
    page.said("Done again")
    assert page.state()[1][chosen] == -1
    keys(browser, "a")
    assert page.selected() == 48


def test_create_rename_merge_and_split_with_a_preview(page):
    browser = page.browser
    page.show(2)
    n = len(page.state()[1][page.state()[1] == 2])
    one(browser, "#name").send_keys("Class 0", Keys.ENTER)  # exists: an offer to merge
    assert "The category class 0 exists" in one(browser, "#dialog h2").text
    page.click("#cancel")
    one(browser, "#name").clear()
    one(browser, "#name").send_keys(SCRIPT, Keys.ENTER)
    page.said("Named <img")
    assert page.state()[0][2] == SCRIPT
    assert page.text("[data-set='2'] .set-name") == SCRIPT
    page.click("#split")
    until(lambda: len(all_of(browser, ".part")) == 2, 60)
    page.click("[data-parts='3']")
    until(lambda: len(all_of(browser, ".part")) == 3)
    sizes = [int(part.text.split("\n")[1].split()[0]) for part in all_of(browser, ".part")]
    assert sum(sizes) == n
    page.click("#apply-split")
    page.said("split into 3 categories")
    names, category, _ = page.state()
    assert names[5:] == ["new-4", "new-5"]
    assert [int((category == c).sum()) for c in (2, 5, 6)] == sizes
    page.show(6)
    page.click("#merge")
    one(browser, "#merge-into").send_keys("new 4", Keys.ENTER)
    page.said("new 5 merged into new 4")
    assert int((page.state()[1] == 5).sum()) == sizes[1] + sizes[2]
    assert all_of(browser, "[data-set='6']") == []
    page.show("all")
    page.cells()[0].click()
    one(browser, "#label-selected").send_keys("owl")
    assert one(browser, ".completions .option:last-child").text == "Create “owl”"
    one(browser, "#label-selected").send_keys(Keys.ENTER)
    page.said("1 image in the new category owl")
    for _ in range(5):
        keys(browser, "u")
    until(lambda: page.client.get("api/state")["undo"] is None)
    assert one(browser, "#undo").get_attribute("disabled")


def test_a_category_keeps_its_colour_when_others_are_added_merged_or_named(page):
    def colours():
        script = """return [...document.querySelectorAll(".set .swatch")]
            .map((swatch) => [swatch.parentElement.dataset.set, swatch.style.backgroundColor])"""
        return dict(page.browser.execute_script(script))

    before = colours()
    assert len(before) == 5
    for i in range(8):  # to more than the palette has
        page.client.act("create", name=f"added {i}", images=[i])
    until(lambda: len(colours()) == 13)
    more = colours()
    assert len(set(more.values())) == 13
    page.client.act("rename", category=3, name="a name that comes first")
    page.client.act("merge", source=4, target=2)
    until(lambda: len(colours()) == 12)
    page.load()
    assert {**more, **colours()} == more == {**more, **before}


def test_suggestions_are_named_accepted_except_the_marked_ones_and_skipped(page):
    browser = page.browser
    assert "What are these" in page.text(".set-head h2")
    assert browser.switch_to.active_element.get_attribute("id") == "name"
    first = page.text(".set-head h2")
    keys(browser, "great tit", Keys.ENTER)
    until(lambda: page.text(".set-head h2") != first)
    until(lambda: "great tit" in page.state()[0])  # the page does not wait until the server has saved the name
    assert browser.switch_to.active_element.get_attribute("id") == "name"  # of the next one
    number = int(page.text(".steps").split()[0])
    page.click("#skip")
    until(lambda: int(page.text(".steps").split()[0]) == number - 1)
    page.show(0)
    images, cells = page.images(), page.cells()
    cells[0].click()
    cells[1].click()
    assert page.text("#accept-all") == "Accept all except the 2 selected"
    page.click("#accept-all")
    page.said(f"{len(images) - 2} images accepted as shown")
    assert (page.state()[2][images[2:]] > 0).all()
    assert page.state()[2].tolist().count(2) == len(images) - 2
    assert page.selected() == 2


class SlowSaving:
    """A store that needs a while for each action, as on a busy machine; ``problem`` is an error to raise instead."""

    def __init__(self, store):
        self._append, self.problem = store.append, None

    def __call__(self, action, title):
        time.sleep(0.3)
        if self.problem is not None:
            raise self.problem
        return self._append(action, title)


@pytest.fixture
def slow_page(browser, run_path):
    """The page of a run whose server saves slowly; ``page.saving`` is its `SlowSaving`."""
    hub = Hub(run_path)
    with served(hub) as client:
        store = hub.workspace("run").store
        store.append = saving = SlowSaving(store)
        page = Page(browser, client)
        page.saving = saving
        yield page


def test_who_types_faster_than_the_server_saves_loses_no_key(slow_page):
    page, browser = slow_page, slow_page.browser
    _, category, _ = page.state()
    by_size = sorted([2, 3, 4], key=lambda c: (-(category == c).sum(), c))
    typed = ActionChains(browser, duration=0)
    typed.send_keys("owl", Keys.ENTER, "great tit", Keys.ENTER, "wren", Keys.ENTER).perform()
    until(lambda: page.client.get("api/state")["version"] == 3)
    names = page.state()[0]
    assert [names[c] for c in by_size] == ["owl", "great tit", "wren"]
    page.said("Named wren.")
    page.show("all")
    images = page.images()
    page.cells()[0].click()
    typed = ActionChains(browser, duration=0)  # a label, the next image, its label; then both are undone
    typed.send_keys("l", "owl", Keys.ENTER, Keys.ARROW_RIGHT, " ", "l", "new one", Keys.ENTER, "uu").perform()
    until(lambda: page.client.get("api/state")["version"] == 7)
    names, _, status = page.state()
    assert names[5:] == []
    assert not (status == 2).any()
    keys(browser, "U", "U")
    until(lambda: page.client.get("api/state")["version"] == 9)
    names, category, _ = page.state()
    assert [names[c] for c in category[images[:2]]] == ["owl", "new one"]


def test_labels_typed_fast_in_the_viewer_go_to_one_image_after_another(slow_page):
    page, browser = slow_page, slow_page.browser
    page.show("all")
    images = page.images()[:4]
    page.cells()[0].click()
    keys(browser, Keys.ENTER)
    typed = ActionChains(browser, duration=0)
    typed.send_keys("l", "owl", Keys.ENTER, "class 1", Keys.ENTER, "wren", Keys.ENTER).perform()
    assert one(browser, "#viewer .viewer-head span").text == "4 of 48"
    until(lambda: page.client.get("api/state")["version"] == 3)
    names, category, _ = page.state()
    assert [names[c] for c in category[images[:3]]] == ["owl", "class 1", "wren"]
    keys(browser, Keys.ARROW_LEFT, "c")  # the empty field leaves the arrows to the viewer; what is typed stays
    page.client.act("assign", images=[images[3]], category=0)
    until(lambda: page.client.get("api/state")["version"] == 4)
    assert one(browser, "#label-image").get_attribute("value") == "c"
    assert browser.switch_to.active_element.get_attribute("id") == "label-image"
    assert one(browser, "#viewer .viewer-head span").text == "3 of 48"


def test_an_answer_that_is_not_saved_is_asked_for_again(slow_page):
    page, browser = slow_page, slow_page.browser
    heading = page.text(".set-head h2")
    page.saving.problem = DiskFullError("nothing can be written, so this was not saved")
    keys(browser, "owl", Keys.ENTER)
    assert page.text(".set-head h2") != heading  # the next one
    page.said("was not saved")
    until(lambda: page.text(".set-head h2") == heading)
    assert one(browser, "#name").get_attribute("value") == "owl"
    page.saving.problem = None
    keys(browser, Keys.ENTER)
    page.said("Named owl.")
    keys(browser, "ow")
    page.client.act("rename", category=0, name="robin")  # by another page
    until(lambda: page.text("[data-set='0'] .set-name") == "robin")
    keys(browser, "l", Keys.ENTER)
    until(lambda: "The category owl exists" in page.text("#dialog h2"))
    page.click("#cancel")
    page.saving.problem = DiskFullError("nothing can be written, so this was not saved")
    page.show("all")
    page.cells()[0].click()
    keys(browser, "l", "wren", Keys.ENTER)
    page.said("was not saved")
    until(lambda: page.selected() == 1)
    assert one(browser, "#label-selected").get_attribute("value") == "wren"
    browser.get_log("browser")


def test_filters_by_doubt_label_state_and_path(page):
    browser = page.browser
    page.show("all")
    one(browser, "#path").send_keys("01")
    until(lambda: one(browser, "#counted").text == "11 of 48 images")
    one(browser, "#path").send_keys(Keys.BACKSPACE, Keys.BACKSPACE)
    one(browser, "#status option[value='1']").click()
    until(lambda: one(browser, "#counted").text == "12 of 48 images")
    one(browser, "#status option[value='']").click()
    found = page.client.get("api/state")
    confidence, second = column(found["confidence"], "<f4"), column(found["secondConfidence"], "<f4")
    doubtful = (2 * second > confidence) & (column(found["status"], "u1") == 0)
    page.click("#filter-doubt")
    until(lambda: one(browser, "#counted").text == f"{doubtful.sum()} of 48 images")
    assert sorted(page.images()) == np.flatnonzero(doubtful).tolist()
    page.click("#filter-doubt")
    one(browser, "#sort option[value='path']").click()
    until(lambda: page.images() == sorted(page.images()))


def test_everything_works_from_the_keyboard_with_a_help_overlay(page):
    browser = page.browser
    keys(browser, Keys.ESCAPE, "?")
    assert len(all_of(browser, "#help dt")) > 15
    keys(browser, Keys.ESCAPE, "n", "g", "/")  # skips a suggestion; no filter in suggestions
    page.show("all")
    browser.execute_script("document.activeElement.blur()")
    images = page.images()
    keys(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.SPACE)
    assert page.selected() == 1
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).key_up(
        Keys.SHIFT
    ).perform()
    assert page.selected() == 3
    keys(browser, "l", "class 0", Keys.ENTER)
    page.said("3 images labelled as class 0")
    assert (page.state()[2][images] == 2).sum() == 3
    keys(browser, Keys.ENTER)
    assert one(browser, "#viewer[open] .large-picture").get_attribute("src").endswith("/1600")
    path = one(browser, "#viewer-path").text
    keys(browser, Keys.ARROW_RIGHT)
    assert one(browser, "#viewer-path").text != path
    keys(browser, Keys.ESCAPE, "p", "p")
    keys(browser, "n", "n", "r")
    assert browser.switch_to.active_element.get_attribute("id") == "name"
    keys(browser, Keys.ESCAPE, "m")
    assert browser.switch_to.active_element.get_attribute("id") == "merge-into"
    keys(browser, Keys.ESCAPE, Keys.ESCAPE)
    until(lambda: all_of(browser, "dialog[open]") == [])


def test_two_tabs_stay_in_sync_and_a_stopped_server_is_said(browser, run_path):
    with served(run_path) as client:
        page = Page(browser, client)
        page.show("all")
        first = browser.current_window_handle
        browser.switch_to.new_window("tab")
        second = Page(browser, client)
        second.show(2)
        one(browser, "#name").send_keys("great tit", Keys.ENTER)
        second.said("Named great tit.")
        browser.switch_to.window(first)
        until(lambda: page.text("[data-set='2'] .set-name") == "great tit")
        keys(browser, "u")
        until(lambda: page.text("[data-set='2'] .set-name") == "new 1")
        browser.switch_to.window(browser.window_handles[-1])
        until(lambda: page.text("[data-set='2'] .set-name") == "new 1")
        browser.close()
        browser.switch_to.window(first)
    until(lambda: "cannot be reached" in one(browser, "#problem").text)
    page.cells()[0].click()
    keys(browser, "1")
    page.said("was not saved")
    browser.get_log("browser")


def test_the_lasso_on_the_map_selects_images_for_labelling(page, browser):
    page.tab("map")
    canvas = until(lambda: all_of(browser, "#map-canvas"), 30)[0]
    until(lambda: canvas.size["height"] > 100)
    page.click("#lasso")
    width, height = canvas.size["width"] - 20, canvas.size["height"] - 20
    drag = ActionChains(browser, duration=30).move_to_element_with_offset(canvas, -width // 2, -height // 2)
    drag.click_and_hold().move_by_offset(width, 0).move_by_offset(0, height).move_by_offset(
        -width, 0
    ).release().perform()
    until(lambda: page.selected() == 48)  # a lasso around everything
    keys(browser, "2")
    page.said("48 images labelled as class 1")
    assert set(page.state()[1]) == {1}
    canvas.send_keys("+++", Keys.ARROW_LEFT, Keys.ENTER)  # the same by keyboard: what is in view
    assert 0 < page.selected() < 48
    keys(browser, Keys.ESCAPE)
    assert page.selected() == 0


def test_a_quick_refit_and_an_export_and_import(page, browser):
    page.client.act("create", name="great tit", images=[20, 21, 22, 23])
    page.tab("refit")
    page.click("#quick-refit")
    until(lambda: all_of(browser, "#accept-refit"), 60)
    assert "would move" in page.text("#moved-count")
    page.click("#accept-refit")
    page.said("The refit is accepted.")
    until(lambda: "accepted" in page.text("#attempts"))
    page.tab("files")
    for old in browser.downloads.iterdir():
        old.unlink()
    page.click("#export-csv")
    file = until(lambda: list(browser.downloads.glob("*.csv")))[0]
    rows = list(csv.reader(io.StringIO(file.read_text())))
    assert ["020.png", "great tit"] in rows
    (browser.downloads / "tasks.json").write_text(json.dumps([{"image": "040.png", "choice": "owl"}]))
    one(browser, "#import-file").send_keys(str(browser.downloads / "tasks.json"))
    page.said("1 label imported from tasks.json")
    assert page.state()[0][-1] == "owl"


def test_what_is_doubtful_in_a_label_file_is_said_where_its_import_is(page, tmp_path, recwarn):
    (tmp_path / "birds.csv").write_bytes("path,label\n000.png,Bläuling\n".encode("cp1252"))
    page.tab("files")
    one(page.browser, "#import-file").send_keys(str(tmp_path / "birds.csv"))
    page.said("1 label imported from birds.csv. Warning: birds.csv is not UTF-8 and is read as Windows-1252")
    assert "Bläuling" in page.state()[0]
    assert len(recwarn) == 0


@pytest.mark.parametrize("few_images", [20], indirect=True)
def test_from_opening_the_demo_to_ten_named_categories_and_updated_assignments_in_25_actions(
    browser, few_images, tmp_path
):
    """An action is a click, a typed text or a key."""
    demo(output=tmp_path / "run", method="semi-supervised-kmeans", report=False, progress=False)
    with served(tmp_path / "run") as client:
        page, n_actions = Page(browser, client), 1  # opening it
        names = iter(["frog", "horse", "ship", "truck", "dog"])
        while page.text(".set-head h2").startswith("What are these"):
            before = page.text(".set-head h2"), page.client.get("api/state")["version"]
            keys(browser, next(names))
            keys(browser, Keys.ENTER)
            n_actions += 2
            until(lambda before=before: client.get("api/state")["version"] > before[1])
            until(lambda: len(all_of(browser, "#message:not([hidden])")) == 1)
        found, _, _ = page.state()
        assert len(set(found) - {"frog", "horse", "ship", "truck", "dog"}) == 5  # the names that were typed
        assert not any(name.startswith("new-") for name in found)
        one(browser, "[data-tab='refit']").click()
        one(browser, "#quick-refit").click()
        until(lambda: all_of(browser, "#accept-refit"), 60)
        one(browser, "#accept-refit").click()
        n_actions += 3
        until(lambda: client.get("api/state")["undo"] == "accept a quick refit")
        print(f"{n_actions} actions")
        assert n_actions <= 25
