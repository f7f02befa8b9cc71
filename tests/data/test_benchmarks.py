"""The benchmarks by name: known classes, labelled images by the published rule (pinned), hold-outs, messages."""

import hashlib
import json
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from benchmark_trees import aircraft_tree, cifar_tree
from torchvision import datasets

from promptcal.data import embedded_set, label_half
from promptcal.data.benchmarks import benchmark_names, default_root, get_benchmark, list_benchmarks, load_benchmark
from promptcal.data.benchmarks.benchmark_data import hold_out_of_each_class, load_test_images
from promptcal.data.benchmarks.class_lists import published_split
from promptcal.errors import DataError, PromptCALWarning

REAL_DATA = Path(os.environ.get("PROMPTCAL_DATA") or "absent")

SEVEN = {  # training images, classes, known
    "cifar10": (50_000, 10, 5),
    "cifar100": (50_000, 100, 80),
    "imagenet100": (127_000, 100, 50),
    "cub": (5_994, 200, 100),
    "cars": (8_144, 196, 98),
    "aircraft": (6_667, 100, 50),
    "herbarium19": (34_000, 683, 341),
}
FEW = {"cifar100-c50-l10": (50, 0.1), "cifar100-c25-l50": (25, 0.5), "cifar100-c10-l50": (10, 0.5)}
FEW_MINI = {"mini-c50-l10": (5, 0.1), "mini-c30-l50": (3, 0.5), "mini-c20-l50": (2, 0.5)}


def real(file):
    return pytest.mark.skipif(not (REAL_DATA / file).is_file(), reason=f"{file} is not in the folder PROMPTCAL_DATA")


def digest(mask):
    return hashlib.sha256(np.flatnonzero(mask).astype("<i8").tobytes()).hexdigest()


def published_rule(classes, known, share):
    """The published rule, written as published: with the global generator."""
    known = set(known)
    of_known = [i for i, c in enumerate(classes.tolist()) if c in known]
    np.random.seed(0)
    chosen = np.random.choice(range(len(of_known)), replace=False, size=int(share * len(of_known)))
    mask = np.zeros(len(classes), dtype=bool)
    mask[[of_known[c] for c in chosen]] = True
    return mask


# -- names and classes ------------------------------------------------------------------------------------------


def test_all_benchmarks_are_listed():
    names = [*SEVEN, "mini", *FEW, *FEW_MINI]
    assert benchmark_names() == [*names, *(f"{name}-inductive" for name in names)]


@pytest.mark.parametrize("name", ["mini", "mini-c30-l50"])
def test_development_split_has_labelled_images_only(name):
    whole, dev = load_benchmark(name), load_benchmark(f"{name}-dev")
    labelled = np.flatnonzero(whole.labelled)
    assert dev.train.names == [whole.train.names[i] for i in labelled]
    assert dev.truth() == [whole.truth()[i] for i in labelled]
    assert dev.class_names == [whole.class_names[c] for c in whole.known]
    assert dev.known.tolist() == list(range(0, len(whole.known), 2))
    of_known = np.isin(dev.classes, dev.known)
    assert dev.labelled.sum() == int(0.5 * of_known.sum())
    assert not dev.labelled[~of_known].any()
    assert np.array_equal(dev.labelled, published_rule(dev.classes, dev.known, 0.5))


@pytest.mark.parametrize(
    ("name", "message"),
    [("mini-dev-inductive", "no benchmark"), ("mini-inductive-dev", "use mini-dev"), ("x-dev", "no benchmark 'x-dev'")],
)
def test_development_split_of_nothing_else(name, message):
    with pytest.raises(DataError, match=message):
        get_benchmark(name)


def test_development_split_has_no_test_images():
    with pytest.raises(DataError, match="mini-dev has no test images"):
        load_test_images("mini-dev")


@pytest.mark.parametrize(("name", "n_known", "share"), [(name, *values) for name, values in FEW_MINI.items()])
def test_few_annotations_of_the_embedded_images(name, n_known, share):
    data = load_benchmark(name)
    assert data.known.tolist() == list(range(n_known))
    assert data.labelled.sum() == int(share * 150 * n_known)
    assert set(data.classes[data.labelled]) == set(range(n_known))


@pytest.mark.parametrize("name", SEVEN)
@pytest.mark.parametrize("variant", ["", "-inductive"])
def test_images_classes_and_known_are_the_published_numbers(name, variant):
    found = get_benchmark(name + variant)
    assert (found.n_images, found.n_classes, len(found.known)) == SEVEN[name]
    assert found.labelled_share == 0.5
    assert found.inductive == bool(variant)


@pytest.mark.parametrize("name", FEW)
def test_few_annotations_are_the_published_classes_and_a_share_of_them(name):
    n_known, share = FEW[name]
    np.random.seed(0)
    drawn = np.random.choice(np.arange(100), size=n_known, replace=False)  # the published rule, but for the ten
    expected = [14, 16, 18, 35, 39, 47, 49, 67, 72, 88] if n_known == 10 else sorted(drawn)
    assert get_benchmark(name).known == expected
    assert get_benchmark(name).labelled_share == share


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cub", "cub_osr_splits"),
        ("cars", "scars_osr_splits"),
        ("aircraft", "aircraft_osr_splits"),
        ("herbarium19", "herbarium_19_class_splits"),
    ],
)
def test_known_and_new_classes_are_all_classes_once(name, file):
    split = published_split(file)
    new = split["New"] if "New" in split else [c for group in split["unknown_classes"].values() for c in group]
    assert sorted([*get_benchmark(name).known, *new]) == list(range(SEVEN[name][1]))


def test_imagenet100_is_the_published_draw():
    np.random.seed(0)
    drawn = np.sort(np.random.choice(range(1000), size=100, replace=False))
    published = published_split("imagenet100_gcd")
    assert published["indices"] == drawn.tolist()
    assert published["wnids"] == sorted(published["wnids"])  # so that ImageFolder's order of the 100 is the list's
    assert len(set(published["names"])) == len(published["names"]) == 100


@pytest.mark.parametrize(
    ("file", "pinned"),
    [
        ("aircraft_osr_splits", "9f49e367fe3d70cc"),
        ("cub_osr_splits", "898fcce3bd853ace"),
        ("herbarium_19_class_splits", "e86744e9ce1685d1"),
        ("imagenet100_gcd", "7bb0cdd47695e639"),
        ("scars_osr_splits", "37e099ef9f1e84d9"),
    ],
)
def test_the_published_class_lists_are_unchanged(file, pinned):
    content = json.dumps(published_split(file), sort_keys=True).encode()
    assert hashlib.sha256(content).hexdigest().startswith(pinned)


# -- labelled images --------------------------------------------------------------------------------------------

# Labelled images where the classes come one after the other, and where they take turns.
LABELLED = {
    "cifar10": (12_500, "bac770cc2aa220ff", "e33d4c9d5e5cb8af"),
    "cifar100": (20_000, "34f2888c58266bdd", "3fffa2152e7136ef"),
    "cifar100-c50-l10": (2_500, "ba4467ce28873b21", "2857aecfde37649f"),
    "cifar100-c25-l50": (6_250, "d5421342e6356ce9", "1319c4427058f21e"),
    "cifar100-c10-l50": (2_500, "758719894bf7196a", "e5beb0ca15fe6c29"),
}


@pytest.mark.parametrize("name", LABELLED)
def test_the_labelled_images_of_cifar_are_pinned(name):
    n_labelled, *pinned = LABELLED[name]
    entry = get_benchmark(name)
    n_classes = entry.n_classes
    one_by_one, in_turns = np.arange(50_000) // (50_000 // n_classes), np.arange(50_000) % n_classes
    for classes, expected in zip((one_by_one, in_turns), pinned, strict=True):
        labelled = label_half(classes, entry.known, entry.labelled_share)
        assert np.array_equal(labelled, published_rule(classes, entry.known, entry.labelled_share))
        assert labelled.sum() == n_labelled
        assert set(classes[labelled]) == set(entry.known)
        assert digest(labelled).startswith(expected)


@pytest.mark.parametrize("name", ["cifar100", *FEW])
@real("cifar100.npz")
def test_the_real_cifar100(name):
    with pytest.warns(PromptCALWarning, match="cifar100.npz has the images in a different order than the original"):
        read = load_benchmark(name, REAL_DATA)
    assert (len(read.train), len(read.class_names)) == (50_000, 100)
    assert np.bincount(read.classes).tolist() == [500] * 100
    assert read.class_names == sorted(read.class_names)
    entry = get_benchmark(name)
    assert np.array_equal(read.labelled, published_rule(read.classes, entry.known, entry.labelled_share))
    assert read.labelled.sum() == LABELLED[name][0]
    assert digest(read.labelled).startswith(LABELLED[name][1])
    assert read.train.image(49_999).size == (32, 32)


@real("cifar100.npz")
@pytest.mark.filterwarnings("ignore::promptcal.errors.PromptCALWarning")
def test_the_real_cifar100_inductive():
    read = load_benchmark("cifar100-inductive", REAL_DATA)
    assert np.bincount(read.test_classes).tolist() == [100] * 100
    assert len(read.test) == 10_000
    assert (read.validation.sum(), (read.validation & read.labelled).sum()) == (5_000, 2_000)
    assert digest(read.validation).startswith("d1ebd5dc8da50483")


@real("cub_train.tar")
def test_the_real_cub():
    with pytest.warns(PromptCALWarning, match="cub_train.tar has the images in a different order than the original"):
        read = load_benchmark("cub", REAL_DATA)
    assert (len(read.train), len(read.class_names), len(read.known)) == (5_994, 200, 100)
    assert read.class_names[0] == "001.Black_footed_Albatross"
    assert read.class_names[199] == "200.Common_Yellowthroat"
    assert all(read.class_names[c] in name for c, name in zip(read.classes, read.train.names, strict=True))
    assert np.isin(read.classes, read.known).sum() == 2_997
    assert np.array_equal(read.labelled, published_rule(read.classes, read.known.tolist(), 0.5))
    assert read.labelled.sum() == 1_498
    assert digest(read.labelled) == "bd2484ab086cb07a51d0dc1c77e556392750fcd5af79c7c3b7d994a65d786d55"
    with tarfile.open(REAL_DATA / "cub_train.tar") as archive:
        assert min(read.train.image(2_000).size) == 176
        assert len(archive.getnames()) == len(read.train)


def test_only_labelled_images_have_labels(tmp_path, monkeypatch):
    cifar_tree(tmp_path, datasets.CIFAR10, monkeypatch, [range(10)] * 5, [0])
    with pytest.warns(PromptCALWarning, match="cifar-10-batches-py has 50 training images, not the published 50,000"):
        read = load_benchmark("cifar10", tmp_path)
    is_given = [label is not None for label in read.labels()]
    assert is_given == read.labelled.tolist()
    assert read.truth() == [f"class {c}" for c in read.classes]
    assert all(label in (None, true) for label, true in zip(read.labels(), read.truth(), strict=True))
    with pytest.raises(AttributeError):
        read.name = "other"


# -- hold-out for selection ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_labelled", "n", "n_classes"), [(1_498, 5_994, 200), (20_000, 50_000, 100), (60, 109, 3)])
def test_a_tenth_of_each_class_is_held_out(n_labelled, n, n_classes):
    generator = np.random.default_rng(1)
    labelled = generator.permutation(n) < n_labelled
    classes = generator.integers(n_classes, size=n)
    held = hold_out_of_each_class(labelled, classes)
    for c in range(n_classes):
        assert held[classes == c].sum() == (classes == c).sum() // 10
    np.random.seed(123)
    assert np.array_equal(hold_out_of_each_class(labelled, classes), held)  # whatever the global generator does


def test_no_class_loses_its_last_label_to_the_hold_out():
    classes = np.arange(2000) % 100  # twenty images a class, of which two are held out
    labelled = np.arange(2000) < 100  # one label a class, which some classes would lose
    held = hold_out_of_each_class(labelled, classes)
    assert not held[labelled].any()
    assert 150 < held.sum() < 200


# -- where data is searched for, and errors about absent data ------------------------------------------------


def test_the_root_is_that_of_the_environment_or_data(monkeypatch):
    monkeypatch.delenv("PROMPTCAL_DATA", raising=False)
    assert default_root() == Path("data")
    monkeypatch.setenv("PROMPTCAL_DATA", "elsewhere")
    assert default_root() == Path("elsewhere")
    with pytest.raises(DataError, match="CUB-200-2011 is not in elsewhere"):
        load_benchmark("cub")


def test_an_unknown_name_is_an_error_that_lists_all_names(tmp_path):
    with pytest.raises(
        DataError, match="there is no benchmark 'cubs'; choose one of cifar10, .*, cub, .*cub-inductive"
    ):
        load_benchmark("cubs", tmp_path)


@pytest.mark.parametrize(
    ("name", "place", "home"),
    [
        ("cifar10", "cifar-10-batches-py", "pass --download, or unpack .* https://www.cs.toronto.edu"),
        ("cifar100-c25-l50", "cifar-100-python, cifar100.npz", "pass --download, or unpack"),
        ("imagenet100", "imagenet, ILSVRC2012", "download ILSVRC 2012 from https://www.image-net.org"),
        (
            "cub-inductive",
            "CUB_200_2011, cub_train.tar",
            "download CUB_200_2011.tgz from https://www.vision.caltech.edu",
        ),
        ("cars", "stanford_cars", "download a copy from a mirror"),
        ("aircraft", "fgvc-aircraft-2013b", "pass --download, or unpack .* https://www.robots.ox.ac.uk"),
        ("herbarium19", "herbarium_19, ", "download small-train and small-validation .* https://www.kaggle.com"),
    ],
)
def test_absent_data_is_an_error_that_says_what_to_download(tmp_path, name, place, home):
    with pytest.raises(DataError, match=rf"is not in \S+ \(searched for {place}.*\); .*{home}.* there"):
        load_benchmark(name, tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["imagenet100", "cub", "cars", "herbarium19"])
def test_an_automatic_download_that_does_not_exist_is_an_error(tmp_path, name):
    with pytest.raises(DataError, match="cannot be downloaded automatically into .*; .*download"):
        load_benchmark(name, tmp_path, download=True)


@pytest.mark.parametrize(
    ("name", "dataset", "attribute"),
    [
        ("cifar10", datasets.CIFAR10, "url"),
        ("cifar100-inductive", datasets.CIFAR100, "url"),
        ("aircraft", datasets.FGVCAircraft, "_URL"),
    ],
)
def test_a_failed_download_is_an_error_with_reason_and_remedy(tmp_path, monkeypatch, name, dataset, attribute):
    monkeypatch.setattr(dataset, attribute, (tmp_path / "gone.tar.gz").as_uri())
    with pytest.raises(DataError, match=r"could not be downloaded \(.*No such file.*\); try again, or unpack .* there"):
        load_benchmark(name, tmp_path / "data", download=True)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder and the address at which it is served on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "server"
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *message):
        pass


@pytest.fixture
def served_aircraft(server, tmp_path, monkeypatch):
    folder, address = server
    variants = [f"{i:03d}" for i in range(100)]
    tree = aircraft_tree(tmp_path / "packed", variants, variants, variants)
    file = folder / "fgvc-aircraft-2013b.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(tree, tree.name)
    monkeypatch.setattr(datasets.FGVCAircraft, "_URL", f"{address}/{file.name}")
    return file


@pytest.mark.filterwarnings("ignore::promptcal.errors.PromptCALWarning")
def test_a_truncated_download_can_be_tried_again_and_present_data_is_not_downloaded(served_aircraft, tmp_path):
    whole = served_aircraft.read_bytes()
    served_aircraft.write_bytes(whole[:60])
    with pytest.raises(DataError, match=r"FGVC-Aircraft could not be downloaded \(.*\); try again, or unpack"):
        load_benchmark("aircraft", tmp_path / "data", download=True)
    served_aircraft.write_bytes(whole)
    assert len(load_benchmark("aircraft", tmp_path / "data", download=True).train) == 100
    served_aircraft.unlink()
    assert len(load_benchmark("aircraft", tmp_path / "data", download=True).train) == 100


def test_the_listing_says_which_data_exist(tmp_path):
    (tmp_path / "CUB_200_2011").mkdir()
    (tmp_path / "cifar100.npz").touch()
    found = {row.spec.name: row.found for row in list_benchmarks(tmp_path)}
    assert list(found) == benchmark_names()
    assert found["cub"] == found["cub-inductive"] == tmp_path / "CUB_200_2011"
    assert found["cifar100"] == found["cifar100-c10-l50"] == tmp_path / "cifar100.npz"
    assert found["cars"] is None


def test_mini_is_what_the_demo_runs_on_and_needs_no_folder(tmp_path):
    data = load_benchmark("mini-inductive", tmp_path / "nowhere")
    train, test = embedded_set("train"), embedded_set("test")
    assert np.array_equal(data.labelled, label_half(train.labels, range(5)))
    assert np.array_equal(data.classes, train.labels)
    assert np.array_equal(np.asarray(data.train.image(7)), train.images[7])
    assert np.array_equal(data.test_classes, test.labels)
    assert np.array_equal(np.asarray(data.test.image(499)), test.images[499])
    assert data.validation.sum() == 150  # a tenth of each class
    assert load_benchmark("mini", tmp_path / "nowhere").test is None
