"""The findings of `check` on images with known faults, and near duplicates against comparing every pair."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from promptcal import api
from promptcal.data import ImageSet, embedded_set
from promptcal.data import check as checking
from promptcal.data.check import Fingerprint, check_images, connected, duplicate_groups, near_pairs, perceptual_hash
from promptcal.errors import ConfigError, LabelError, PromptCALWarning


def photo(seed=0, size=64):
    """Smooth like a photo, so that a copy of it hashes alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def save(root, **pictures):
    for name, picture in pictures.items():
        file = root / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file)
    return root


def recompressed(picture, quality=40):
    file = io.BytesIO()
    picture.save(file, "jpeg", quality=quality)
    return Image.open(file).convert("RGB")


def check(root, labels=None, **options):
    images = ImageSet.of(root)
    labels = labels or {}
    by_position = [labels.get(name) for name in images.names]
    return check_images(images, by_position, **options)


def groups(duplicates):
    return [d.paths for d in duplicates]


def names_of(findings):
    return [finding.what for finding in findings]


# -- near duplicates against an oracle ------------------------------------------------------------------------


def ones_differing(a, b):
    return bin(int(a) ^ int(b)).count("1")


def all_near_pairs(hashes, distance):
    pairs = itertools.combinations(range(len(hashes)), 2)
    return {(i, j) for i, j in pairs if ones_differing(hashes[i], hashes[j]) <= distance}


def hashes_with_copies(seed, n=150):
    """Random hashes, each with copies of 0 to 8 flipped bits."""
    generator = np.random.default_rng(seed)
    hashes = [int(h) for h in generator.integers(0, 2**64, n // 3, dtype=np.uint64)]
    while len(hashes) < n:
        flipped = generator.choice(64, generator.integers(0, 9), replace=False)
        hashes.append(hashes[generator.integers(0, n // 3)] ^ sum(1 << int(bit) for bit in flipped))
    return np.array(hashes, dtype=np.uint64)


@pytest.mark.parametrize("distance", [0, 1, 3, 4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_near_pairs_are_those_of_comparing_all(distance, seed):
    hashes = hashes_with_copies(seed)
    found = [pair for a, b in near_pairs(hashes, distance) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert len(found) == len(set(found))  # each once
    assert {tuple(sorted(pair)) for pair in found} == all_near_pairs(hashes, distance)
    assert found


@pytest.mark.parametrize("hashes", [[], [7], [5] * 40, [0, 2**64 - 1], [2**63, 0, 1]])
def test_near_pairs_of_few_and_of_equal_hashes(hashes):
    hashes = np.array(hashes, dtype=np.uint64)
    found = {pair for a, b in near_pairs(hashes, 2) for pair in zip(a.tolist(), b.tolist(), strict=True)}
    assert found == all_near_pairs(hashes, 2)


@pytest.mark.parametrize("at_once", [0, 7, 10**6])
def test_connected_groups_are_those_of_following_every_pair(monkeypatch, at_once):
    monkeypatch.setattr(checking, "_PAIRS_AT_ONCE", at_once)
    generator = np.random.default_rng(0)
    pairs = [tuple(generator.integers(0, 60, (2, k))) for k in (5, 0, 9, 1, 20)]
    group = list(range(60))
    for a, b in [(int(a), int(b)) for first, second in pairs for a, b in zip(first, second, strict=True)]:
        group = [group[a] if number == group[b] else number for number in group]
    expected = [[i for i in range(60) if group[i] == number] for number in dict.fromkeys(group)]
    assert connected(60, iter(pairs)) == [members for members in expected if len(members) > 1]
    assert connected(0, iter([])) == []


def test_groups_of_real_images_are_those_of_comparing_all():
    images = [Image.fromarray(a) for a in embedded_set().images[:120]]
    images += [recompressed(i, 70) for i in images[:30]] + images[100:110] + [Image.new("RGB", (32, 32))] * 2
    fingerprints = [Fingerprint.of(image) for image in images]

    def near(a, b):
        difference = np.abs(a.thumbnail.astype(int) - b.thumbnail.astype(int)).mean()
        return ones_differing(a.hash, b.hash) <= 4 and difference <= 12

    group = list(range(len(fingerprints)))
    for i, j in itertools.combinations(range(len(fingerprints)), 2):
        if near(fingerprints[i], fingerprints[j]):
            group = [group[i] if number == group[j] else number for number in group]
    expected = [[i for i in range(len(fingerprints)) if group[i] == number] for number in dict.fromkeys(group)]
    several = [g for g in expected if len({np.asarray(images[i]).tobytes() for i in g}) > 1]
    exact, found = duplicate_groups(fingerprints, 4)
    assert found == several
    assert len(found) >= 25
    assert [[i, i + 50] for i in range(100, 110)] == exact[:10]
    assert exact[10:] == [[160, 161]]


# -- the hash -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [recompressed, lambda image: image.resize((31, 45)), lambda image: image.point(lambda value: value * 0.95 + 6)],
)
def test_copies_of_real_images_hash_alike_and_other_images_do_not(change):
    images = [Image.fromarray(a) for a in embedded_set().images[:100]]
    hashes = [perceptual_hash(image) for image in images]
    apart = [ones_differing(h, perceptual_hash(change(image))) for h, image in zip(hashes, images, strict=True)]
    assert np.mean(np.array(apart) <= 4) >= 0.95
    others = [ones_differing(a, b) for a, b in itertools.combinations(hashes, 2)]
    assert np.mean(np.array(others) <= 4) <= 0.001


def test_flat_pictures_of_other_colours_are_no_near_duplicates(tmp_path):
    colours = {name: Image.new("RGB", (40, 40), name) for name in ("red", "blue", "white", "black")}
    report = check(save(tmp_path, **colours, nearly_red=Image.new("RGB", (40, 40), (250, 3, 0))))
    assert groups(report.near) == [["nearly_red.png", "red.png"]]


# -- reports --------------------------------------------------------------------------------------------------


def test_counts_add_up(tmp_path):
    save(tmp_path, **{f"{i}": photo(i) for i in range(7)})
    (tmp_path / "8.png").write_text("no image")
    progress = []
    labels = {"0.png": "10", "1.png": "10", "2.png": "2", "3.png": "2", "8.png": "2"}
    report = check(tmp_path, labels, on_progress=progress.append)
    assert progress == list(range(1, 9))
    assert report.n_images == 8
    assert list(report.labelled.items()) == [("2", 2), ("10", 2)]
    assert report.n_unlabelled == 3
    assert report.unreadable == [("8.png", "not an image")]
    assert report.imbalance == 1
    assert names_of(report.problems) == ["cannot be read"]
    assert report.warnings == []
    (tmp_path / "8.png").unlink()
    report = check(tmp_path, {name: label for name, label in labels.items() if name != "8.png"})
    assert (report.problems, report.warnings) == ([], [])
    assert (report.exact, report.near, report.tiny, report.unreadable) == ([], [], [], [])


def test_unreadable_files_of_all_kinds_are_named_with_the_reason(tmp_path):
    save(tmp_path, **{"a b/ü": photo(), "thin": Image.new("RGB", (101, 2))})
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a b" / "ü.png").read_bytes()[:-60])
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    report = check(tmp_path)
    assert [path for path, _ in report.unreadable] == ["cut.png", "empty.jpg", "gone.png", "thin.png"]
    assert all(reason for _, reason in report.unreadable)
    assert names_of(report.problems) == ["cannot be read", "too few images"]


def test_tiny_images_are_those_with_a_shorter_side_below_the_limit(tmp_path):
    save(tmp_path, a=photo(1).resize((31, 90)), b=photo(2).resize((90, 31)), c=photo(3).resize((32, 33)))
    assert check(tmp_path).tiny == [("a.png", 31, 90), ("b.png", 90, 31)]
    assert check(tmp_path, min_side=0).tiny == []
    assert "tiny" in names_of(check(tmp_path).warnings)


def test_exact_duplicates_have_the_same_pixels_whatever_the_file(tmp_path):
    save(tmp_path, **{"a b": photo(), "x/ü": photo(), "other": photo(1)})
    photo().save(tmp_path / "c.bmp")
    (tmp_path / "link.png").symlink_to(tmp_path / "a b.png")
    Image.fromarray(np.asarray(photo()).reshape(32, 128, 3)).save(tmp_path / "reshaped.png")
    report = check(tmp_path)
    assert groups(report.exact) == [["a b.png", "c.bmp", "link.png", "x/ü.png"]]
    assert report.near == []


@pytest.mark.parametrize(
    ("labels", "status"),
    [({}, "unlabelled"), ({"a": "cat", "b": "cat"}, "labelled"), ({"a": "cat"}, "labelled and unlabelled")],
)
@pytest.mark.parametrize("kind", ["exact", "near"])
def test_duplicates_are_reported_by_label_status(tmp_path, labels, status, kind):
    copy = photo() if kind == "exact" else recompressed(photo())
    save(tmp_path, a=photo(), b=copy, c=photo(1), d=photo(2), e=photo(3))
    report = check(tmp_path, {f"{n}.png": y for n, y in {**labels, "c": "cat", "d": "cat"}.items()})
    assert report.problems == []
    assert names_of(report.warnings) == [f"{kind} duplicates, {status}"]
    assert groups(getattr(report, kind)) == [["a.png", "b.png"]]


def test_the_same_image_in_two_classes_is_a_problem_and_a_near_one_a_warning(tmp_path):
    save(tmp_path, a=photo(), b=photo(), c=photo(1), d=recompressed(photo(1)), e=photo(), f=photo(2), g=photo(3))
    report = check(tmp_path, {"a.png": "cat", "b.png": "dog", "c.png": "cat", "d.png": "dog"})
    assert names_of(report.problems) == ["same image, two classes"]
    assert report.problems[0].cases == ["a.png (cat) = b.png (dog) = e.png"]
    assert names_of(report.warnings) == ["near duplicates, two classes"]
    assert report.warnings[0].cases == ["c.png (cat) ~ d.png (dog)"]


def test_a_near_copy_joins_all_exact_copies(tmp_path):
    save(tmp_path, a=photo(), b=photo(), c=recompressed(photo()))
    report = check(tmp_path)
    assert groups(report.exact) == [["a.png", "b.png"]]
    assert groups(report.near) == [["a.png", "b.png", "c.png"]]
    assert check(tmp_path, near_distance=0).exact == report.exact


def test_imbalance_and_lone_labels_are_warned_of(tmp_path):
    save(tmp_path, **{f"{i:02d}": photo(i) for i in range(14)})
    report = check(tmp_path, {f"{i:02d}.png": "many" if i < 12 else "one" for i in range(13)})
    assert report.imbalance == 12
    assert names_of(report.warnings) == ["fewer than 2 labels", "imbalanced classes"]
    assert report.warnings[1].cases[0].startswith("many: 12, one: 1; fit expects no equal sizes then")


def test_classes_that_differ_only_in_letter_case_are_warned_of(tmp_path):
    save(tmp_path, **{f"{i:02d}": photo(i) for i in range(8)})
    report = check(tmp_path, {f"{i:02d}.png": ("Cat", "cat", "dog")[i % 3] for i in range(6)})
    assert names_of(report.warnings) == ["differ only in letter case"]
    assert report.warnings[0].cases == ["Cat = cat"]


def test_a_class_of_unreadable_images_only_is_shown_with_none(tmp_path):
    save(tmp_path, a=photo(1), b=photo(2), c=photo(3))
    (tmp_path / "d.png").write_bytes(b"")
    report = check(tmp_path, {"a.png": "cat", "b.png": "cat", "d.png": "dog"})
    assert report.labelled == {"cat": 2, "dog": 0}
    assert report.imbalance is None
    assert "fewer than 2 labels" in names_of(report.warnings)


def test_nothing_unlabelled_is_a_problem_and_no_labels_a_warning(tmp_path):
    save(tmp_path, a=photo(1), b=photo(2))
    assert names_of(check(tmp_path, {"a.png": "x", "b.png": "x"}).problems) == ["nothing unlabelled"]
    assert names_of(check(tmp_path).warnings) == ["no labels"]


# -- the function `promptcal.check` ----------------------------------------------------------------------------


def test_check_takes_arrays_patterns_and_class_folders(tmp_path):
    arrays = np.stack([np.asarray(photo(s)) for s in (0, 1, 0)])
    report = api.check(images=arrays, labels=["a", -1, None], progress=False)
    assert groups(report.exact) == [["image-000000", "image-000002"]]
    save(tmp_path, **{"cat/1": photo(1), "cat/2": photo(2), "unlabelled/3": photo(3)})
    with pytest.warns(PromptCALWarning, match="labels are taken from the class folders"):
        report = api.check(images=tmp_path, progress=False)
    assert (report.labelled, report.n_unlabelled) == ({"cat": 2}, 1)
    assert api.check(images=f"{tmp_path}/cat/*", progress=False).n_unlabelled == 2


def test_check_refuses_invalid_arguments(tmp_path):
    save(tmp_path, a=photo())
    with pytest.raises(ConfigError, match="0 to 16, not 17"):
        api.check(images=tmp_path, near_distance=17)
    with pytest.raises(ConfigError, match="does not exist; create it first"):
        api.check(images=tmp_path, output=tmp_path / "nowhere" / "report.json")
    with pytest.raises(LabelError, match="no such image"):
        api.check(images=tmp_path, labels={"b.png": "cat"})
