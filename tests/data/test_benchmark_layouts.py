"""Each official layout is read in its own order, with its own class numbers, and errors say what is wrong with it."""

import hashlib
import os
import pickle
import tarfile

import numpy as np
import pytest
from benchmark_trees import (
    aircraft_tree,
    cars_tree,
    cifar100_archive,
    cifar_tree,
    cub_archive,
    cub_tree,
    herbarium_tree,
    imagenet_tree,
    numbers_seen,
    write_pickle,
)
from torchvision import datasets

from promptcal.data.benchmarks import load_benchmark
from promptcal.data.benchmarks.class_lists import published_split
from promptcal.errors import DataError, PromptCALWarning

pytestmark = pytest.mark.filterwarnings("ignore::promptcal.errors.PromptCALWarning")

CUB_IDS = [*range(200, 0, -1), *range(201, 601)]  # images.txt is not in the order of the numbers
CUB_CLASSES = {i: (i - 1) % 200 + 1 for i in CUB_IDS}
CUB_IN_TRAINING = {i: i <= 400 for i in CUB_IDS}


@pytest.fixture
def cub(tmp_path):
    return cub_tree(tmp_path, CUB_IDS, CUB_CLASSES, CUB_IN_TRAINING)


def test_cifar10_is_read_batch_by_batch(tmp_path, monkeypatch):
    batches = [np.roll(np.arange(10), b).tolist() for b in range(5)]
    cifar_tree(tmp_path, datasets.CIFAR10, monkeypatch, batches, [3, 1, 4])
    read = load_benchmark("cifar10-inductive", tmp_path)
    assert read.classes.tolist() == [c for batch in batches for c in batch]
    assert numbers_seen(read.train) == list(range(50))
    assert read.class_names == [f"class {i}" for i in range(10)]
    assert read.test_classes.tolist() == [3, 1, 4]
    assert numbers_seen(read.test) == [50, 51, 52]
    assert set(read.classes[read.labelled]) <= set(range(5))
    assert read.labelled.sum() == 12  # half of 25, rounded down


def test_cifar100_is_preferred_in_its_original_form(tmp_path, monkeypatch):
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 2)).tolist()
    cifar100_archive(tmp_path / "cifar100.npz", list(range(100)), [0])
    cifar_tree(tmp_path, datasets.CIFAR100, monkeypatch, [classes], [7])
    read = load_benchmark("cifar100", tmp_path)
    assert read.classes.tolist() == classes
    assert numbers_seen(read.train) == list(range(200))
    assert (read.test, read.test_classes, read.validation) == (None, None, None)
    assert read.labelled.sum() == 80


def test_a_damaged_cifar_is_refused_before_it_is_unpickled(tmp_path, monkeypatch):
    folder = cifar_tree(tmp_path, datasets.CIFAR10, monkeypatch, [range(10)] * 5, [0])
    (folder / "data_batch_3").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(
        DataError, match="cifar-10-batches-py is incomplete or damaged .*; delete it and download it again"
    ):
        load_benchmark("cifar10", tmp_path)


def test_cifar100_from_one_archive(tmp_path):
    cifar100_archive(tmp_path / "cifar100.npz", [*range(100), *range(100)], [9, 8])
    read = load_benchmark("cifar100-inductive", tmp_path)
    assert read.classes.tolist() == [*range(100)] * 2
    assert numbers_seen(read.train) == list(range(200))
    assert read.test_classes.tolist() == [9, 8]
    assert numbers_seen(read.test) == [200, 201]


def test_cub_is_in_the_order_of_images_txt(tmp_path, cub):
    read = load_benchmark("cub-inductive", tmp_path)
    expected = [i for i in CUB_IDS if i <= 400]
    assert numbers_seen(read.train) == expected
    assert read.classes.tolist() == [CUB_CLASSES[i] - 1 for i in expected]
    assert read.train.names[0] == "images/200.Bird/0200.jpg"
    assert read.train.root == cub
    assert numbers_seen(read.test) == list(range(401, 601))
    assert read.class_names[0] == "001.Bird"
    assert np.array_equal(
        np.unique(read.classes[read.labelled]), np.intersect1d(read.known, read.classes[read.labelled])
    )
    assert read.labelled.sum() == 100


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "images" / "007.Bird" / "0007.jpg").unlink(), "its lists name images/007.Bird/0007.jpg"),
        (lambda f: (f / "train_test_split.txt").unlink(), "train_test_split.txt is missing"),
        (lambda f: (f / "image_class_labels.txt").write_text("1 1\n"), "image 200 of images.txt has no class"),
        (lambda f: (f / "images.txt").write_text("1\n"), "a line of images.txt has no value"),
        (lambda f: (f / "classes.txt").write_text("1 001.Bird\n"), "CUB-200-2011 has 200 classes, not 1"),
        (
            lambda f: (f / "images.txt").write_text("1 001.Bird/0001.jpg\n"),
            "only 1 of 200 classes have training images",
        ),
        (lambda f: (f / "images.txt").write_bytes(b"1 \xff\xfe\n"), "images.txt cannot be read"),
    ],
)
def test_an_incomplete_cub_is_an_error_that_says_what_is_wrong(tmp_path, cub, damage, message):
    damage(cub)
    with pytest.raises(
        DataError, match=f"CUB_200_2011 is not the complete data set: {message}.*; unpack the archive again"
    ):
        load_benchmark("cub", tmp_path)


def test_cub_from_a_tar_is_by_name_and_read_in_place(tmp_path):
    members = [f"cub/{c:03d}.Bird/{k}.jpg" for k in "ba" for c in range(200, 0, -1)]
    cub_archive(tmp_path / "cub_train.tar", members)
    read = load_benchmark("cub", tmp_path)
    assert read.train.names == sorted(members)
    assert numbers_seen(read.train) == [members.index(m) for m in sorted(members)]
    assert read.classes.tolist() == np.repeat(np.arange(200), 2).tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["cub_train.tar"]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("../001.Bird/a.jpg", "points outside of it"),
        ("../../001.Bird/a.jpg", "points outside of it"),
        ("/001.Bird/a.jpg", "points outside of it"),
        ("cub/Bird/a.jpg", "is not in a class folder such as 001.Name"),
    ],
)
def test_an_invalid_member_of_the_tar_is_refused(tmp_path, member, message):
    cub_archive(tmp_path / "cub_train.tar", [member])
    with pytest.raises(DataError, match=f"cub_train.tar has the member {member}, which {message}"):
        load_benchmark("cub", tmp_path)


def test_members_of_the_tar_that_are_not_images_are_ignored(tmp_path):
    cub_archive(tmp_path / "cub_train.tar", [f"cub/{c:03d}.Bird/a.jpg" for c in range(1, 201)] + ["cub/readme.txt"])
    with tarfile.open(tmp_path / "cub_train.tar", "a") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"cub/001.Bird/{kind.decode()}.jpg")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert len(load_benchmark("cub", tmp_path).train) == 200
    assert [p.name for p in tmp_path.iterdir()] == ["cub_train.tar"]  # nothing is unpacked


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
@pytest.mark.parametrize(("file", "name"), [("cifar100.npz", "cifar100"), ("cub_train.tar", "cub")])
def test_a_file_that_is_not_an_archive_is_an_error(tmp_path, content, file, name):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{file} is not the complete data set: (it cannot be read|.* classes, not 0)"):
        load_benchmark(name, tmp_path)


def test_the_tar_has_no_test_images(tmp_path):
    cub_archive(tmp_path / "cub_train.tar", ["cub/001.Bird/a.jpg"])
    with pytest.raises(DataError, match="cub_train.tar in .* has no test images, which cub-inductive needs; download"):
        load_benchmark("cub-inductive", tmp_path)


@pytest.mark.parametrize("annotations", ["cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat"])
def test_cars_are_in_the_order_of_the_annotations(tmp_path, annotations):
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(1, 197), 2)).tolist()
    folder = cars_tree(tmp_path, classes, [5, 196], test_annotations=annotations)
    read = load_benchmark("cars-inductive", tmp_path)
    assert read.classes.tolist() == [c - 1 for c in classes]
    assert numbers_seen(read.train) == list(range(392))
    assert read.train.names[0] == "cars_train/00392.jpg"
    assert read.train.root == folder
    assert read.test_classes.tolist() == [4, 195]
    assert numbers_seen(read.test) == [392, 393]
    assert read.class_names[-1] == "Car 195"
    assert read.labelled.sum() == 98


VARIANTS = sorted([f"7{i:02d}-200" for i in range(97)] + ["F-16A/B", "F/A-18", "Model B200"])


def test_aircraft_are_in_the_order_of_the_list_and_classes_in_that_of_the_names(tmp_path):
    trainval = np.random.default_rng(0).permutation(VARIANTS * 2).tolist()
    folder = aircraft_tree(tmp_path, VARIANTS, trainval, ["F/A-18", "700-200"])
    read = load_benchmark("aircraft-inductive", tmp_path)
    assert [read.class_names[c] for c in read.classes] == trainval
    assert read.class_names == VARIANTS
    assert numbers_seen(read.train) == list(range(200))
    assert read.train.root == folder
    assert [VARIANTS[c] for c in read.test_classes] == ["F/A-18", "700-200"]
    assert read.labelled.sum() == 50


@pytest.mark.parametrize("place", ["imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"])
def test_imagenet100_is_its_100_classes_in_order(tmp_path, place):
    folder = imagenet_tree(tmp_path, place=place)
    read = load_benchmark("imagenet100-inductive", tmp_path)
    assert read.classes.tolist() == np.repeat(np.arange(100), 2).tolist()
    assert numbers_seen(read.train) == list(range(200))
    assert numbers_seen(read.test) == list(range(200, 300))
    assert read.test_classes.tolist() == list(range(100))
    assert read.class_names == published_split("imagenet100_gcd")["names"]
    assert read.train.root == folder
    assert read.labelled.sum() == 50


def test_imagenet_is_read_as_torchvision_reads_it(tmp_path):
    folder = imagenet_tree(tmp_path)
    ours = load_benchmark("imagenet100", tmp_path)
    whole = datasets.ImageFolder(folder / "train")
    wanted = [whole.class_to_idx[w] for w in published_split("imagenet100_gcd")["wnids"]]
    theirs = [(path, wanted.index(c)) for path, c in whole.samples if c in wanted]
    assert [str(folder / name) for name in ours.train.names] == [path for path, _ in theirs]
    assert ours.classes.tolist() == [c for _, c in theirs]


def test_herbarium_classes_are_folders_sorted_as_text(tmp_path):
    herbarium_tree(tmp_path)
    read = load_benchmark("herbarium19-inductive", tmp_path)
    as_text = sorted(str(i) for i in range(683))
    assert read.class_names == as_text
    assert [str(n) for n in numbers_seen(read.train)] == as_text
    assert read.classes.tolist() == list(range(683))
    assert [as_text[c] for c in read.test_classes] == ["10", "5"]
    assert read.labelled.sum() == 170


def cars(root):
    return cars_tree(root, list(range(1, 197)), [1])


def aircraft_with_unknown_variant(root):
    return aircraft_tree(root, VARIANTS, [*VARIANTS, "Kite"], [])


def imagenet(root):
    return imagenet_tree(root, per_class=1)


def few_herbarium(root):
    return herbarium_tree(root, classes=12)


@pytest.mark.parametrize(
    ("tree", "name", "damage", "message"),
    [
        (cars, "cars-inductive", lambda f: (f / "cars_test_annos_withlabels.mat").unlink(), "labels.mat is missing"),
        (cars, "cars", lambda f: (f / "cars_train" / "00196.jpg").unlink(), "its lists name cars_train/00196.jpg"),
        (cars, "cars", lambda f: (f / "devkit" / "cars_train_annos.mat").write_bytes(b"no"), "mat cannot be read"),
        (aircraft_with_unknown_variant, "aircraft", lambda f: None, "image 8900 has the variant 'Kite', which"),
        (
            imagenet,
            "imagenet100-inductive",
            lambda f: (f / "val" / "n01443537" / "n01443537_0.JPEG").unlink(),
            "a class folder in val contains no images",
        ),
        (
            imagenet,
            "imagenet100",
            lambda f: (f / "train" / "n01443537").rename(f / "train" / "goldfish"),
            "the class folder train/n01443537 is missing",
        ),
        (few_herbarium, "herbarium19", lambda f: None, "Herbarium19 has 683 classes, not 12"),
        (few_herbarium, "herbarium19", lambda f: (f / "small-train").rename(f / "train"), "small-train is missing"),
    ],
)
def test_an_incomplete_data_set_is_an_error_that_says_what_is_wrong(tmp_path, tree, name, damage, message):
    damage(tree(tmp_path))
    with pytest.raises(DataError, match=message):
        load_benchmark(name, tmp_path)


def test_images_are_opened_only_when_used_and_a_different_number_gives_a_warning(tmp_path, cub):
    (cub / "images" / "200.Bird" / "0200.jpg").write_bytes(b"damaged")
    message = "CUB_200_2011 has 400 training images, not the published 5,994; compare these results with each other"
    with pytest.warns(PromptCALWarning, match=message):
        read = load_benchmark("cub", tmp_path)
    with pytest.raises(Exception, match="not an image"):
        read.train.image(0)


@pytest.mark.parametrize("dataset", [datasets.CIFAR10, datasets.CIFAR100])
def test_a_cifar_pickle_with_the_right_checksum_still_runs_nothing(tmp_path, monkeypatch, dataset):
    n = 10 if dataset is datasets.CIFAR10 else 100
    folder = cifar_tree(tmp_path, dataset, monkeypatch, [range(n)] * len(dataset.train_list), [0])
    mark = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    for name, entries in (("train_list", dataset.train_list), ("meta", None)):
        if entries is None:
            md5 = write_pickle(folder / dataset.meta["filename"], {dataset.meta["key"]: Trap()})
            monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": md5})
        else:
            sound = (folder / entries[0][0]).read_bytes()
            md5 = write_pickle(folder / entries[0][0], {"data": Trap(), "labels": [0]})
            monkeypatch.setattr(dataset, name, [[entries[0][0], md5], *entries[1:]])
        with pytest.raises(DataError, match=r"incomplete or damaged \(.+: it would call \w+\.mkdir\)"):
            load_benchmark("cifar10" if n == 10 else "cifar100", tmp_path)
        if entries is not None:
            (folder / entries[0][0]).write_bytes(sound)
            monkeypatch.setattr(dataset, name, [[entries[0][0], hashlib.md5(sound).hexdigest()], *entries[1:]])
    assert not mark.exists()


def test_cifar_as_python_2_pickled_it_is_read(tmp_path, monkeypatch):
    """The published files name NumPy's functions where they lay then."""
    folder = cifar_tree(tmp_path, datasets.CIFAR10, monkeypatch, [range(10)] * 5, [0])
    train = []
    for name, _ in datasets.CIFAR10.train_list:
        content = pickle.dumps(pickle.loads((folder / name).read_bytes()), protocol=2)
        content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
        assert b"cnumpy.core.multiarray\n_reconstruct" in content
        (folder / name).write_bytes(content)
        train.append([name, hashlib.md5(content).hexdigest()])
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    read = load_benchmark("cifar10", tmp_path)
    assert read.classes.tolist() == [*range(10)] * 5
    assert numbers_seen(read.train) == list(range(50))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.arange(102) * 10**9}, "point outside it"),
        ({"offsets": np.array([0])}, "out of bounds"),
        ({"label": np.zeros(1, np.uint8)}, "out of bounds"),
        ({"jpeg": np.array([{}], dtype=object)}, "allow_pickle"),
    ],
)
def test_an_archive_with_invalid_offsets_or_labels_is_an_error(tmp_path, change, message):
    cifar100_archive(tmp_path / "cifar100.npz", list(range(100)), [0])
    with np.load(tmp_path / "cifar100.npz") as stored:
        parts = dict(stored)
    np.savez(tmp_path / "cifar100.npz", **(parts | change))
    with pytest.raises(DataError, match=rf"cifar100.npz is not the complete data set: it cannot be read \(.*{message}"):
        load_benchmark("cifar100", tmp_path)
