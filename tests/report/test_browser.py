"""The report in a real browser, opened from disk: every tab, every control, and text that tries to be code."""

import csv
import itertools
import json
import re
import shutil
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from hostile import CLASSES, HOSTILE_FILES, LONG, NAMED, page_data

from browsing import all_of, colour_scheme, keys, one, size, until
from promptcal import fit, make_report
from promptcal.data import ImageSet, read_labels
from promptcal.errors import PromptCALWarning
from promptcal.report import measures
from promptcal.run import RunDirectory

By = pytest.importorskip("selenium.webdriver.common.by").By
ActionChains = pytest.importorskip("selenium.webdriver").ActionChains
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys


@pytest.fixture
def page(browser, hostile_report):
    yield from opened(browser, hostile_report)


@pytest.fixture
def many_page(browser, many_report):
    yield from opened(browser, many_report)


@pytest.fixture
def continued_page(browser, continued_run):
    yield from opened(browser, make_report(run=continued_run, progress=False))


def opened(browser, report):
    """The report, freshly opened at desktop size in light mode; at the end the browser must have logged no error."""
    size(browser, 1300, 900)
    colour_scheme(browser, "light")
    browser.get(report.path.as_uri())
    browser.execute_script("localStorage.clear()")
    browser.get("about:blank")
    browser.get(report.path.as_uri())
    browser.get_log("browser")
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    assert browser.execute_script("return window.stolen") is None


def go(page, where):
    page.execute_script("location.hash = arguments[0]", f"#{where}")
    until(lambda: page.execute_script("return location.hash") == f"#{where}")


def shown_clusters(page):
    return [int(card.get_attribute("data-cluster")) for card in all_of(page, ".card")]


def download(page):
    """The downloaded file; its name has the run and the time, so no older file has it."""
    for old in page.downloads.iterdir():
        old.unlink()
    one(page, "#download").click()
    return until(lambda: list(page.downloads.glob("*.csv")))[0]


def downloaded(page):
    with download(page).open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


def name_cluster(page, name):
    one(page, ".cluster-page .name").send_keys(name)
    one(page, ".cluster-page .save-name").click()


def titles(page, selector):
    return [thumb.get_attribute("title") for thumb in all_of(page, selector)]


def given_labels(data):
    """Path and label of the labelled images in the data of the page."""
    images = data["images"]
    rows = zip(images["paths"], images["cluster"], images["labelled"], strict=True)
    return {path: data["clusters"][cluster]["label"] for path, cluster, is_labelled in rows if is_labelled}


@pytest.fixture
def data(hostile_report):
    return page_data(hostile_report.path)


def test_the_summary_counts_what_there_is(page, data):
    figures = {f.text.split("\n")[1]: f.text.split("\n")[0] for f in all_of(page, ".figure")}
    assert figures["images"] == "48"
    assert figures["labelled"] == "12"
    assert figures["known classes"] == figures["discovered"] == "2"
    last = [cell.text for cell in all_of(page, "#accuracy tbody tr:last-child :is(th, td)")]
    assert last[:2] == ["PromptCAL stage 2, affinity learning", f"{100 * data['accuracy'][-1]['all']:.1f}"]
    assert len(all_of(page, ".size-row")) == 4
    assert all_of(page, '[data-tab="changes"]') == []  # the run started from no other
    (note,) = all_of(page, ".note")
    assert note.text.startswith("The result is that of training")


@pytest.mark.parametrize(
    ("tab", "selector", "at_least"),
    [
        ("overview", ".figure", 4), ("clusters", ".card", 4), ("map", "#map-canvas", 1),
        ("confusion", "#confusion-matrix td", 16),
        ("training", ".chart svg .line", 4), ("neighbours", ".neighbour-row .thumb", 36),
        ("attention", "#attention-grid .picture", 48), ("cluster-2", "#gallery .thumb", 3),
    ],
)  # fmt: skip
def test_every_tab_opens_at_its_top_and_fits_a_phone(page, hostile_report, tab, selector, at_least):
    page.get("about:blank")
    page.get(f"{hostile_report.path.as_uri()}#{tab}")
    until(lambda: len(all_of(page, selector)) >= at_least)
    assert page.execute_script("return window.scrollY") == 0
    assert page.execute_script("return document.getElementById(location.hash.slice(1))") is None  # nothing to jump to
    size(page, 390, 844)
    time.sleep(0.1)
    width = page.execute_script("return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    assert max(width[:2]) <= width[2] == 390


def test_thumbnails_are_decoded_when_they_are_near_the_screen(page):
    go(page, "clusters")
    until(lambda: "blob:" in (one(page, ".card .pixels").value_of_css_property("background-image")))
    drawn = page.execute_async_script(
        """const done = arguments[0]; const url = getComputedStyle(document.querySelector(".card .pixels"))
           .backgroundImage.slice(5, -2); const image = new Image();
           image.onload = () => done(image.naturalWidth); image.onerror = () => done(0); image.src = url;"""
    )
    assert drawn > 100


def test_filters_search_and_sort(page, data):
    go(page, "clusters")
    one(page, ".card")
    assert shown_clusters(page) == [0, 1, 2, 3]
    one(page, '[data-filter="known"]').click()
    assert shown_clusters(page) == [0, 1]
    one(page, '[data-filter="new"]').click()
    assert shown_clusters(page) == [2, 3]
    one(page, '[data-filter="doubtful"]').click()
    assert shown_clusters(page) == [c for c, record in enumerate(data["clusters"]) if record["doubtful"]]
    one(page, '[data-filter="all"]').click()
    for sort, key in (("size", lambda r: -r["size"]), ("loose", lambda r: r["cohesion"])):
        one(page, f'#sort option[value="{sort}"]').click()
        assert shown_clusters(page) == sorted(range(4), key=lambda c: key(data["clusters"][c]))
    one(page, "#search").send_keys("NEW 1")
    assert shown_clusters(page) == [2]
    one(page, "#search").clear()
    one(page, "#search").send_keys(HOSTILE_FILES[1])
    at = data["images"]["paths"].index(HOSTILE_FILES[1])
    assert shown_clusters(page) == [data["images"]["cluster"][at]]
    assert [t.get_attribute("title") for t in all_of(page, ".card .thumb")] == [HOSTILE_FILES[1]]
    assert one(page, "#cluster-count").text.startswith("1 cluster.")


def test_a_gallery_is_ordered_and_the_viewer_shows_an_image_with_its_neighbours(page, data, hostile_run):
    go(page, "cluster-0")
    thumbs = until(lambda: all_of(page, "#gallery .thumb"))
    members = [data["images"]["paths"].index(thumb.get_attribute("title")) for thumb in thumbs]
    assert sorted(members) == [i for i in range(48) if data["images"]["cluster"][i] == 0]
    confidence = [data["images"]["confidence"][i] for i in members]
    assert confidence == sorted(confidence, reverse=True)  # from typical to doubtful
    path = thumbs[0].get_attribute("title")
    thumbs[0].click()
    assert one(page, "#viewer-path").text == f"{hostile_run.info.root}/{path}"
    near, at = all_of(page, "#viewer .near .thumb"), members[0]
    place = list(data["images"]["shown"]).index(at)
    expected = data["images"]["neighbours"].reshape(-1, 8)[place]
    assert [t.get_attribute("title") for t in near] == [data["images"]["paths"][i] for i in expected]
    truth = data["images"]["truth"]
    for thumb, other in zip(near, expected, strict=True):
        frame = "right" if truth[other] == truth[at] else "wrong"
        assert frame in thumb.find_element(By.CSS_SELECTOR, ".picture").get_attribute("class").split()
    near[0].click()
    until(lambda: one(page, "#viewer-path").text.endswith(data["images"]["paths"][expected[0]]))
    one(page, "#close-viewer").click()
    until(lambda: not page.execute_script("return document.getElementById('viewer').open"))


def test_the_viewer_links_to_the_image_file(page, data, hostile_run):
    go(page, "clusters")
    for name in HOSTILE_FILES:
        search = one(page, "#search")
        search.clear()
        search.send_keys(name)
        one(page, f".card .thumb[data-thumb='{data['images']['paths'].index(name)}']").click()
        address = urlsplit(one(page, "#open-file").get_attribute("href"))
        assert (address.scheme, address.netloc, address.query, address.fragment) == ("file", "", "", "")
        assert unquote(address.path) == f"{hostile_run.info.folder}/{name}"
        assert Path(unquote(address.path)).is_file()
        one(page, "#close-viewer").click()


def test_a_name_labels_all_images_of_the_cluster(page, data):
    go(page, "cluster-2")
    name = 'Émeu, "grand" <b>'
    name_cluster(page, name)
    until(lambda: one(page, ".cluster-head h2").text == name)
    rows = downloaded(page)
    assert rows[0] == ["path", "label"]
    clusters = data["images"]["cluster"]
    named = {path: name for i, path in enumerate(data["images"]["paths"]) if clusters[i] == 2}
    assert dict(map(tuple, rows[1:])) == given_labels(data) | named
    assert len(rows) - 1 == len(given_labels(data)) + len(named)


def test_merging_gives_a_cluster_the_name_of_the_other(page, data):
    clusters, paths = data["images"]["cluster"], data["images"]["paths"]
    go(page, "cluster-3")
    one(page, '#merge-target option[value="2"]').click()
    one(page, "#merge").click()
    until(lambda: page.execute_script("return location.hash") == "#cluster-2")
    size_of_both = int((clusters >= 2).sum())
    until(lambda: one(page, ".cluster-page .numbers strong").text == f"{size_of_both} images")
    doubtful, second = data["images"]["doubtful"], data["images"]["second"]
    elsewhere = [i for i in range(48) if clusters[i] >= 2 and doubtful[i] and second[i] < 2]
    if elsewhere == [i for i in range(48) if clusters[i] >= 2 and doubtful[i]]:
        pytest.skip("no image is doubtful between the two clusters with this version's rounding")
    assert {t.get_attribute("title") for t in all_of(page, "#doubtful .thumb")} == {paths[i] for i in elsewhere}
    both = {path: "new-1" for i, path in enumerate(paths) if clusters[i] >= 2}
    assert dict(downloaded(page)[1:]) == given_labels(data) | both
    go(page, "clusters")
    until(lambda: shown_clusters(page) == [0, 1, 2])

    go(page, "cluster-2")  # into a known class, together with the cluster that was merged into it
    one(page, '#merge-target option[value="0"]').click()
    one(page, "#merge").click()
    until(lambda: page.execute_script("return location.hash") == "#cluster-0")
    known = {path: data["clusters"][0]["label"] for i, path in enumerate(paths) if clusters[i] >= 2}
    assert dict(downloaded(page)[1:]) == given_labels(data) | known

    one(page, '[data-unmerge="2"]').click()  # undo one merge
    until(lambda: dict(downloaded(page)[1:]) == given_labels(data) | both)


def test_a_suggested_merge_is_one_click(browser, hostile_run, tmp_path):
    """The run says that new-2 is probably part of the first known class, and that new-1 may be several categories."""
    folder = tmp_path / "run"
    shutil.copytree(hostile_run.path, folder)
    results = json.loads((folder / "results.json").read_text())
    known, described = hostile_run.names[0], results["categories"]["categories"]
    described[3]["part_of"], described[2]["split"] = known, "its stability is 0.30"
    results["categories"]["merges"] = [{"cluster": 3, "into": 0, "connection": 0.4, "false_rate": 0.25}]
    (folder / "results.json").write_text(json.dumps(results))
    report = make_report(run=folder, progress=False)
    browser.get("about:blank")
    browser.get(f"file://{report.path}#clusters")
    browser.execute_script("localStorage.clear(); location.reload()")
    browser.find_element("css selector", "[data-filter=advice]").click()
    cards = browser.find_elements("css selector", ".card")
    assert [card.get_attribute("data-cluster") for card in cards] == ["0", "2", "3"]
    assert "May be several categories: its stability is 0.30" in cards[1].text
    assert f"Probably part of {known}" in " ".join(cards[2].text.split())
    cards[2].find_element("css selector", ".suggested-merge").click()
    left = [card.get_attribute("data-cluster") for card in browser.find_elements("css selector", ".card")]
    assert "3" not in left
    assert "1 merge" in browser.find_element("id", "decisions").text
    assert not browser.find_elements("css selector", ".suggested-merge")


def test_images_marked_wrong_have_no_label(page, data):
    clusters, paths = data["images"]["cluster"], data["images"]["paths"]
    given = given_labels(data)
    go(page, "cluster-2")
    name_cluster(page, "emu")
    until(lambda: one(page, ".cluster-head h2").text == "emu")
    one(page, "#select-mode").click()
    wrong = titles(page, "#gallery .thumb")[:2]
    for thumb in all_of(page, "#gallery .thumb")[:2]:
        thumb.click()
    assert one(page, "#selected-count").text == "2 images selected"
    one(page, "#selection-wrong").click()
    until(lambda: len(all_of(page, "#gallery .thumb.is-wrong")) == 2)
    go(page, "cluster-0")  # a given label can be wrong, too
    labelled = until(lambda: all_of(page, "#gallery .thumb.labelled"))[0]
    wrong.append(labelled.get_attribute("title"))
    labelled.click()
    one(page, "#mark-wrong").click()
    until(lambda: one(page, "#mark-wrong").text == "Marked as wrong")
    one(page, "#close-viewer").click()
    named = {path: "emu" for i, path in enumerate(paths) if clusters[i] == 2}
    expected = {path: "" if path in wrong else label for path, label in (given | named).items()}
    file = download(page)
    with file.open(newline="", encoding="utf-8") as stream:
        assert dict(list(csv.reader(stream))[1:]) == expected
    assert re.fullmatch(r"run-labels-\d{4}-\d\d-\d\d-\d{6}\.csv", file.name)
    *shown, command = one(page, "#decisions").text.split("\n")
    assert shown == ["1 cluster named · 3 images marked as wrong", "Undo", "Discard all", "Download labels"]
    parts = data["nextCommand"]
    assert command == (
        f"In the folder with {file.name}, run this to apply the names at once: {parts['name']}{file.name} "
        f"or this to fit again with the labels: {parts['before']}{file.name}{parts['after']}"
    )

    page.refresh()  # the browser has stored the decisions
    until(lambda: "3 images marked as wrong" in one(page, "#decisions").text)
    assert dict(downloaded(page)[1:]) == expected
    one(page, "#discard-all").click()
    assert dict(downloaded(page)[1:]) == given
    one(page, "#undo").click()
    assert dict(downloaded(page)[1:]) == expected


def test_twelve_clusters_are_named_with_few_clicks(many_page, many_report):
    """A click on the first field, then only typing; the names are read as labels."""
    page, data = many_page, page_data(many_report.path)
    page.execute_script(
        """window.clicks = 0;
           addEventListener("click", (e) => { if (e.isTrusted && e.detail > 0) window.clicks += 1; }, true);"""
    )
    one(page, '[data-tab="clusters"]').click()
    new = [c for c, record in enumerate(data["clusters"]) if not record["known"]]
    assert len(new) == 12
    one(page, f'[data-cluster="{new[0]}"] .name').click()
    for i in range(12):
        keys(page, f"name {i}", Keys.ENTER)
    until(lambda: "12 clusters named" in one(page, "#decisions").text)
    file = download(page)
    assert page.execute_script("return window.clicks") <= 15
    images = ImageSet.of(data["root"])
    labels = read_labels(file, images)
    clusters = dict(zip(data["images"]["paths"], data["images"]["cluster"], strict=True))
    given = given_labels(data)
    expected = [f"name {new.index(clusters[p])}" if clusters[p] in new else given.get(p) for p in images.names]
    assert labels == expected
    assert file.name.startswith("run_1-labels-")  # no word that a shell would split


def test_a_name_that_exists_in_other_letter_case_is_an_offer_to_merge(many_page, many_report):
    page, data = many_page, page_data(many_report.path)
    go(page, "clusters")
    options = page.execute_script(
        "return Array.from(document.querySelectorAll('#category-names option')).map((o) => o.value)"
    )
    assert options == [record["name"] for record in data["clusters"]]
    first, second, third, fourth = [c for c, record in enumerate(data["clusters"]) if not record["known"]][:4]
    one(page, f'[data-cluster="{first}"] .name').send_keys(" class  0", Keys.ENTER)  # "Class 0" is known
    offer = one(page, f'[data-cluster="{first}"] .offer')
    assert "The category Class 0 exists" in offer.text
    keys(page, Keys.ENTER)  # merges
    until(lambda: first not in shown_clusters(page))
    assert page.switch_to.active_element.find_element(By.XPATH, "ancestor::article").get_attribute(
        "data-cluster"
    ) == str(second)
    keys(page, "Emu", Keys.ENTER)
    keys(page, "emu", Keys.ENTER)
    one(page, f'[data-cluster="{third}"] .keep-name').click()  # two categories that differ in letter case
    keys(page, "Emu", Keys.ENTER)
    offer = one(page, f'[data-cluster="{fourth}"] .offer')
    assert offer.find_elements(By.CSS_SELECTOR, ".keep-name") == []  # the same name is the same category
    offer.find_element(By.CSS_SELECTOR, ".merge-offer").click()
    until(lambda: "2 clusters named · 2 merges" in one(page, "#decisions").text)
    of_cluster = dict(zip(data["images"]["paths"], data["images"]["cluster"], strict=True))
    names = {first: "Class 0", second: "Emu", third: "emu", fourth: "Emu"}
    expected = given_labels(data) | {path: names[c] for path, c in of_cluster.items() if c in names}
    assert dict(downloaded(page)[1:]) == expected


def test_selected_images_are_labelled(page, data):
    go(page, "cluster-2")
    name_cluster(page, "emu")
    until(lambda: one(page, ".cluster-head h2").text == "emu")
    go(page, "cluster-0")
    until(lambda: one(page, ".cluster-head h2").text == CLASSES[0])
    thumbs = all_of(page, "#gallery .thumb")
    listed = titles(page, "#gallery .thumb")
    corner = thumbs[0].find_element(By.CSS_SELECTOR, ".corner")
    ActionChains(page, duration=20).move_to_element(corner).click().perform()  # selects without a mode
    ActionChains(page, duration=20).key_down(Keys.SHIFT).click(thumbs[2]).key_up(Keys.SHIFT).perform()
    assert one(page, "#selected-count").text == "3 images selected"
    ActionChains(page, duration=20).key_down(Keys.CONTROL).click(thumbs[1]).key_up(Keys.CONTROL).perform()
    assert titles(page, ".is-selected") == [listed[0], listed[2]]
    keys(page, "l")
    keys(page, "EMU", Keys.ENTER)  # the category that exists, whatever the letter case
    until(lambda: titles(page, ".has-label") == [listed[0], listed[2]])
    assert [tag.text for tag in all_of(page, ".has-label .tag")] == ["emu", "emu"]
    thumbs[1].click()
    one(page, "#label-image").send_keys("<i>owl</i>", Keys.ENTER)
    until(lambda: one(page, "#your-label").text == "<i>owl</i>")
    one(page, "#close-viewer").click()
    of_cluster = dict(zip(data["images"]["paths"], data["images"]["cluster"], strict=True))
    named = {path: "emu" for path, c in of_cluster.items() if c == 2}
    own = {listed[0]: "emu", listed[1]: "<i>owl</i>", listed[2]: "emu"}
    assert dict(downloaded(page)[1:]) == given_labels(data) | named | own
    go(page, "cluster-2")  # a label that refers to a cluster follows its name
    field = one(page, ".cluster-page .name")
    field.clear()
    field.send_keys("ostrich", Keys.ENTER)
    until(lambda: one(page, ".cluster-head h2").text == "ostrich")
    renamed = {path: "ostrich" if label == "emu" else label for path, label in (named | own).items()}
    assert dict(downloaded(page)[1:]) == given_labels(data) | renamed
    keys(page, "u")
    until(lambda: one(page, ".cluster-head h2").text == "emu")


def test_labels_that_look_wrong_are_listed_and_corrected(browser, hostile_run, tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "doubtful_margin", lambda temperature: -2.0)  # then every label looks wrong
    report = make_report(run=hostile_run, output=tmp_path / "page.html", progress=False)
    (page,), data = itertools.islice(opened(browser, report), 1), page_data(report.path)
    mislabelled, paths = data["mislabelled"], data["images"]["paths"]
    assert len(mislabelled["image"]) == 12
    assert (np.diff(mislabelled["margin"]) <= 0).all()
    go(page, "labels")
    one(page, "#main p")
    assert titles(page, "#mislabelled .thumb") == [paths[i] for i in mislabelled["image"]]
    captions = [
        page.execute_script("return arguments[0].textContent", c) for c in all_of(page, "#mislabelled .caption")
    ]
    clusters = data["clusters"]
    pairs = list(zip(mislabelled["image"], mislabelled["other"], strict=True))
    assert captions == [f"{clusters[data['images']['cluster'][i]]['label']} → {clusters[c]['name']}" for i, c in pairs]
    for element, caption in zip(all_of(page, "#mislabelled .caption"), captions, strict=True):
        is_cut = "return arguments[0].scrollHeight > arguments[0].clientHeight + 1"
        assert len(caption) > 40 or not page.execute_script(is_cut, element), caption
        assert page.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", element), caption
    keys(page, "a")
    one(page, "#accept-suggestions").click()
    assert dict(downloaded(page)[1:]) == given_labels(data) | {paths[i]: clusters[c]["label"] for i, c in pairs}


def test_going_back_keeps_the_position_and_clusters_are_stepped_through(many_page, many_report):
    page, data = many_page, page_data(many_report.path)
    size(page, 700, 500)
    go(page, "clusters")
    order = shown_clusters(page)
    page.execute_script("window.scrollTo(0, 1500)")
    until(lambda: page.execute_script("return window.scrollY") == 1500)
    time.sleep(0.1)
    page.execute_script("location.hash = arguments[0]", f"#cluster-{order[7]}")
    until(lambda: one(page, ".cluster-head h2").text == data["clusters"][order[7]]["name"])
    assert page.execute_script("return window.scrollY") == 0
    keys(page, "n")
    until(lambda: one(page, ".cluster-head h2").text == data["clusters"][order[8]]["name"])
    one(page, "#previous-cluster").click()
    until(lambda: one(page, ".cluster-head h2").text == data["clusters"][order[7]]["name"])
    page.back()
    until(lambda: all_of(page, ".card"))
    assert page.execute_script("return window.scrollY") == 1500
    go(page, f"cluster-{order[0]}")
    keys(page, "b")
    until(lambda: all_of(page, ".card"))
    assert page.execute_script("return window.scrollY") == 1500
    keys(page, "?")
    assert "Keyboard shortcuts" in one(page, "#help").text
    keys(page, Keys.ESCAPE)
    assert not one(page, "#help").is_displayed()
    keys(page, "/")
    until(lambda: page.switch_to.active_element.get_attribute("id") == "search")
    keys(page, "n", Keys.ESCAPE)  # typing is no shortcut
    assert page.execute_script("return location.hash") == "#clusters"
    keys(page, "1")
    until(lambda: all_of(page, ".figure"))


def test_thumbnails_show_whole_photographs(many_page):
    page = many_page
    go(page, "clusters")
    pixels = one(page, ".card .pixels")
    until(lambda: "blob:" in pixels.value_of_css_property("background-image"))
    box = pixels.find_element(By.XPATH, "..").size
    assert box["width"] == pytest.approx(box["height"], abs=1)
    assert pixels.size["width"] == box["width"]
    assert pixels.size["width"] / pixels.size["height"] == pytest.approx(200 / 120, rel=0.03)
    left, right = page.execute_async_script(  # the part of the sheet that is painted
        """const [element, done] = arguments, style = getComputedStyle(element), image = new Image();
           image.onload = () => { const [across] = style.backgroundSize.split(" ").map(parseFloat);
             const [at] = style.backgroundPosition.split(" ").map(parseFloat);
             const width = image.naturalWidth / (across / 100), start = (at / 100) * (image.naturalWidth - width);
             done([start, start + width]); };
           image.src = style.backgroundImage.slice(5, -2);""",
        pixels,
    )
    assert (left % 208, right - left) == pytest.approx((2, 200), abs=0.01)  # all its 200 pixels


def test_categories_are_named_on_the_map(page, data):
    def drawn():
        return json.loads(page.execute_script("return document.getElementById('map-canvas').dataset.names || '[]'"))

    short = [name if len(name) <= 26 else f"{name[:25]}…" for name in (c["name"] for c in data["clusters"])]
    go(page, "map")
    until(drawn)
    assert set(drawn()) <= set(short)
    assert len(drawn()) >= 3
    go(page, "cluster-3")
    name_cluster(page, "emu")
    until(lambda: one(page, ".cluster-head h2").text == "emu")
    go(page, "map")
    until(lambda: "emu" in one(page, "#legend").text)


def test_the_lasso_lists_the_points_inside(page, data):
    go(page, "map")
    canvas = one(page, "#map-canvas")
    until(lambda: page.execute_script("return document.getElementById('map-canvas').dataset.thumbnails") == "false")
    half, high = canvas.size["width"] / 2 - 4, canvas.size["height"] / 2 - 4
    one(page, "#lasso").click()
    drag = ActionChains(page, duration=20).move_to_element(canvas).click_and_hold()
    for x, y in ((0, -high), (half, 0), (0, high), (0, high), (-half, 0)):  # the right half, from the centre
        drag = drag.move_by_offset(round(x), round(y))
    drag.release().perform()
    places = data["map"].reshape(-1, 2)
    inside = [int(i) for i, (x, _) in zip(data["images"]["shown"], places, strict=True) if x > 0]
    assert one(page, "#lasso-count").text == f"{len(inside)} images in the lasso"
    assert set(titles(page, "#lassoed .gallery .thumb")) == {data["images"]["paths"][i] for i in inside}
    assert one(page, "#selected-count").text == f"{len(inside)} images selected"
    one(page, "#label-selected").send_keys("heron", Keys.ENTER)
    until(lambda: f"{len(inside)} images labelled" in one(page, "#decisions").text)
    assert not one(page, "#selection-bar").is_displayed()
    given = given_labels(data)
    assert dict(downloaded(page)[1:]) == given | {data["images"]["paths"][i]: "heron" for i in inside}
    assert one(page, "#next-command").text.endswith(" --n-classes 5")  # no cluster is called heron


def test_the_map_zooms_into_pictures_and_shows_what_is_under_the_pointer(page, data):
    go(page, "map")
    canvas = one(page, "#map-canvas")
    before = page.execute_script("return arguments[0].toDataURL()", canvas)
    place = data["map"].reshape(-1, 2)[5]
    unit = 0.47 * min(canvas.size["width"], canvas.size["height"])
    point = round(place[0] * unit), round(-place[1] * unit)

    def image_in_tip():
        ActionChains(page, duration=20).move_to_element(canvas).move_to_element_with_offset(canvas, *point).perform()
        return page.execute_script("const t = document.querySelector('.tip'); return t.hidden ? null : t.dataset.image")

    image = until(image_in_tip)
    shown = data["images"]["shown"]
    distances = ((data["map"].reshape(-1, 2) - place) ** 2).sum(axis=1)
    near = {int(i) for i in shown[distances < (3 / unit) ** 2]}
    assert int(image) in near
    for _ in range(4):
        all_of(page, ".joined button")[0].click()
    until(lambda: page.execute_script("return arguments[0].dataset.thumbnails", canvas) == "true")
    until(lambda: page.execute_script("return arguments[0].toDataURL()", canvas) != before)
    one(page, '#colour-by option[value="truth"]').click()
    assert len(all_of(page, ".legend-name")) == 4
    assert sorted(data["classes"]) == sorted(CLASSES)
    assert data["classes"][:2] == [record["label"] for record in data["clusters"][:2]]  # known ones first


def test_images_that_moved_since_the_previous_run_are_shown_and_filtered(continued_page, continued_run):
    page = continued_page
    with (continued_run.path / "changes.csv").open(newline="", encoding="utf-8") as file:
        moved = list(csv.DictReader(file))
    assert len(moved) >= 2
    assert f"{len(moved)} images of 48 moved" in one(page, ".note").text
    go(page, "changes")
    figures = {f.text.split("\n")[1]: f.text.split("\n")[0] for f in all_of(page, ".figure")}
    unlabelled = [row["path"] for row in moved if row["labelled"] == "no"]
    assert figures == {
        "moved": str(len(moved)), "stayed": str(48 - len(moved)), "moved without a label": str(len(unlabelled)),
    }  # fmt: skip
    assert one(page, "#changed-categories").text.split("\n") == ["renamed", f"new 2 is now {NAMED}"]

    def listed():
        return sorted(thumb.get_attribute("title") for thumb in all_of(page, "#moved .thumb"))

    assert listed() == sorted(row["path"] for row in moved)
    one(page, "#moved-unlabelled").click()
    assert listed() == sorted(unlabelled)
    one(page, "#moved-unlabelled").click()
    into_known = [row for row in moved if row["to_name"] == CLASSES[0]]
    one(page, f'#moved-to option[value="{into_known[0]["to_cluster"]}"]').click()
    assert listed() == sorted(row["path"] for row in into_known)
    one(page, '#moved-from option[value="new 1"]').click()
    both = sorted(row["path"] for row in into_known if row["from_name"] == "new-1")
    assert listed() == both
    assert one(page, "#moved-count").text.startswith(f"{len(both)} images of {len(moved)} that moved")
    pressed = one(page, '#flows [aria-pressed="true"]')  # clicking it again shows all moves
    assert pressed.text.split("\n")[0].startswith(str(len(both)))
    pressed.click()
    assert listed() == sorted(row["path"] for row in moved)
    one(page, f'#moved [title="{both[0]}"]').click()
    facts = one(page, "#viewer dl").text.split("\n")
    assert facts[facts.index("Previous category") + 1] == "new 1"
    one(page, "#close-viewer").click()
    size(page, 390, 844)
    time.sleep(0.1)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    assert all_of(page, "#main b") == []


def test_losses_of_confirmed_categories_are_on_the_overview(browser, hostile_run, tmp_path):
    """More categories than before split the known ones."""
    root = hostile_run.path.parent
    run = fit(
        images=root / "images", start_from=hostile_run.path, n_classes=9, output=tmp_path / "run", progress=False,
        overrides=["affinity.epochs=0"], report=False,
    )  # fmt: skip
    losses = run.directory.results().changes.confirmed_losses
    assert losses
    for page in opened(browser, make_report(run=run, progress=False)):
        for tab, panel in (("overview", "#overview-losses"), ("changes", "#confirmed-losses")):
            go(page, tab)
            assert [item.get_attribute("textContent") for item in all_of(page, f"{panel} li")] == [
                loss.message() for loss in losses
            ]


def test_the_report_of_a_first_result_says_that_decisions_can_be_lost(browser, hostile_run, tmp_path):
    run = RunDirectory(shutil.copytree(hostile_run.path, tmp_path / "run"))
    run.update_info(status="training")
    with pytest.warns(PromptCALWarning, match="is not finished"):
        report = make_report(run=run.path, progress=False)
    for page in opened(browser, report):
        assert "Download your labels before that" in one(page, "#first-result").text
        go(page, "cluster-2")
        name_cluster(page, "emu")
        assert "before training ends, or you may lose these decisions" in one(page, "#first-result-decisions").text
        file = download(page)
        start = f"When the fit has ended or was stopped, in the folder with {file.name}, run this"
        assert one(page, ".next").text.startswith(start)
        run.update_info(status="finished")
        make_report(run=run.path, progress=False)
        page.get(report.path.as_uri())
        assert one(page, ".figure")
        assert not all_of(page, "#first-result") + all_of(page, "#first-result-decisions")


def test_known_categories_come_first_whatever_their_numbers(continued_page, continued_run):
    assert [c for c in range(4) if continued_run.known[c]] == [0, 1, 3]
    rows = [row.get_attribute("href").rpartition("-")[2] for row in all_of(continued_page, ".size-row")]
    assert rows == ["0", "1", "3", "2"]
    go(continued_page, "clusters")
    until(lambda: shown_clusters(continued_page) == [0, 1, 3, 2])


def test_the_largest_confusions_are_images_in_clusters_of_another_class(page, data):
    matrix = data["confusion"]
    names = [data["clusters"][c]["name"] for c in matrix["clusters"]]
    wrong = [
        (n, f"{matrix['classes'][i]} in {names[j]}")
        for i, row in enumerate(matrix["counts"])
        for j, n in enumerate(row)
        if n and matrix["matchedRows"][j] != i
    ]
    go(page, "confusion")
    chips = until(lambda: all_of(page, ".confusions .chip"))
    texts = [page.execute_script("return arguments[0].textContent", chip) for chip in chips]
    assert texts[0] in {f"{n}{cell}" for n, cell in wrong if n == max(wrong)[0]}
    assert set(texts) <= {f"{n}{cell}" for n, cell in wrong}
    assert len(texts) == min(8, len(wrong))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_the_confusion_matrix_can_be_read(page, data, scheme):
    colour_scheme(page, scheme)
    go(page, "confusion")
    until(lambda: all_of(page, "#confusion-matrix td"))
    contrasts = page.execute_script(
        """const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
           const light = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
             const [r, g, b] = Array.from(context.getImageData(0, 0, 1, 1).data).map((v) => v / 255)
               .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
             return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
           return Array.from(document.querySelectorAll("#confusion-matrix td")).filter((cell) => cell.textContent)
             .map((cell) => { const { color, backgroundColor } = getComputedStyle(cell);
               const [dark, bright] = [light(color), light(backgroundColor)].sort((a, b) => a - b);
               return (bright + 0.05) / (dark + 0.05); });"""
    )
    assert len(contrasts) >= 4
    assert min(contrasts) > 3.5


def test_charts_have_round_numbers_around_their_values(page, data):
    go(page, "training")
    charts = until(lambda: all_of(page, ".chart svg"))
    assert len(charts) == len(data["trainingCharts"]) + len(data["graphCharts"])
    for chart, record in zip(charts, [*data["trainingCharts"], *data["graphCharts"]], strict=True):
        texts = [t.text for t in chart.find_elements(By.CSS_SELECTOR, 'text[text-anchor="end"]:not([y="222"])')]
        marks = [float(text) for text in texts]
        steps = {round(b - a, 9) for a, b in itertools.pairwise(marks)}
        assert len(steps) == 1
        assert f"{steps.pop():e}"[0] in "125"
        values = [value for line in record["lines"] for _, value in line["points"]]
        assert marks[0] <= min(values) <= max(values) <= marks[-1]
        assert 2 <= len(marks) <= 6


def test_text_stays_text(page, data):
    go(page, "clusters")
    until(lambda: len(all_of(page, ".card")) == 4)
    names = [page.execute_script("return arguments[0].textContent", h) for h in all_of(page, ".card h3")]
    assert names == [record["name"] for record in data["clusters"]]
    assert {names[0], names[1]} == {CLASSES[0], CLASSES[1]}
    go(page, "confusion")
    rows = until(lambda: all_of(page, "#confusion-matrix tbody th"))
    assert sorted(page.execute_script("return arguments[0].textContent", row) for row in rows) == sorted(CLASSES)
    for tab in ("overview", "map", "neighbours", "attention", "cluster-0"):
        go(page, tab)
        one(page, "section")
    assert all_of(page, "img, iframe, object, embed, b") == []
    assert len(all_of(page, "script:not([type])")) == 1  # its own
    for file in HOSTILE_FILES:
        assert file in data["images"]["paths"]


def test_the_page_may_load_nothing(page):
    """The page's policy blocks foreign scripts and requests."""
    page.execute_script(
        """const s = document.createElement("script"); s.textContent = "window.stolen = 9"; document.body.append(s);"""
    )
    refused = page.execute_async_script(
        "const done = arguments[0]; fetch('https://example.org/').then(() => done(false), () => done(true));"
    )
    assert refused
    assert page.execute_script("return window.stolen") is None
    messages = [entry["message"] for entry in page.get_log("browser")]  # takes them, so that the fixture finds none
    assert messages
    assert all("Content Security Policy" in message for message in messages)


def test_the_viewer_fits_a_phone(page):
    size(page, 390, 844)
    go(page, "clusters")
    one(page, "#search").send_keys(LONG[:60])
    one(page, ".card .thumb").click()
    assert LONG in one(page, "#viewer-path").text
    assert page.execute_script(
        """const d = document.getElementById("viewer"), b = d.getBoundingClientRect();
           return b.left >= 0 && b.right <= 390 && d.scrollWidth <= d.clientWidth"""
    )


def test_dark_mode_follows_the_system_and_the_button(page):
    def brightness():
        colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(json.loads(colour.replace("rgb(", "[").replace(")", "]"))) / 3

    assert brightness() > 200
    colour_scheme(page, "dark")
    until(lambda: brightness() < 60)
    one(page, "#theme").click()
    until(lambda: brightness() > 200)
    one(page, "#theme").click()
    until(lambda: brightness() < 60)
