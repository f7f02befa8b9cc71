"""Small trees in the official layouts of the benchmarks; image i of a tree is one colour that tells i."""

import hashlib
import io
import pickle
import tarfile

import numpy as np
from PIL import Image
from scipy.io import savemat

from promptcal.data.benchmarks.class_lists import published_split


def colour(i):
    return (i % 251, i // 251, 77)


def png(i, size=4):
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour(i)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def numbers_seen(images):
    """Which image of the tree each image of the set is."""
    seen = [np.asarray(images.image(i))[0, 0].tolist() for i in range(len(images))]
    assert all(blue == 77 for _, _, blue in seen)
    return [red + 251 * green for red, green, _ in seen]


def cifar_tree(root, dataset, monkeypatch, classes_of_batches, test_classes):
    """Pickled batches; torchvision's checksums are set to those of what is written, and so still checked."""
    is_100 = dataset.base_folder == "cifar-100-python"
    folder = root / dataset.base_folder
    key = "fine_labels" if is_100 else "labels"

    def batch(name, first, classes):
        data = np.stack([np.repeat(np.array(colour(first + i), np.uint8), 1024) for i in range(len(classes))])
        return write_pickle(folder / name, {"data": data, key: list(classes)})

    train, first = [], 0
    for (name, _), classes in zip(dataset.train_list, classes_of_batches, strict=True):
        train.append([name, batch(name, first, classes)])
        first += len(classes)
    monkeypatch.setattr(dataset, "train_list", train)
    monkeypatch.setattr(
        dataset, "test_list", [[dataset.test_list[0][0], batch(dataset.test_list[0][0], first, test_classes)]]
    )
    names = [f"class {i}" for i in range(100 if is_100 else 10)]
    md5 = write_pickle(folder / dataset.meta["filename"], {dataset.meta["key"]: names})
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": md5})
    return folder


def write_pickle(path, value):
    content = pickle.dumps(value)
    write(path, content)
    return hashlib.md5(content).hexdigest()


def cifar100_archive(file, classes, test_classes):
    labels = [*classes, *test_classes]
    jpeg = [png(i) for i in range(len(labels))]
    np.savez(
        file,
        jpeg=np.frombuffer(b"".join(jpeg), np.uint8),
        offsets=np.cumsum([0, *map(len, jpeg)]),
        label=np.array(labels, np.uint8),
        split=np.array([0] * len(classes) + [1] * len(test_classes), np.uint8),
        classes=np.array([f"class {i}" for i in range(100)]),
    )


def cub_tree(root, ids, classes, in_training, picture=png):
    """Images ``ids`` in that order in images.txt, while the other lists are by number; classes from 1."""
    folder = root / "CUB_200_2011"
    names = {i: f"{classes[i]:03d}.Bird/{i:04d}.jpg" for i in ids}
    for i in ids:
        write(folder / "images" / names[i], picture(i))
    write(folder / "images.txt", "".join(f"{i} {names[i]}\n" for i in ids))
    write(folder / "image_class_labels.txt", "".join(f"{i} {classes[i]}\n" for i in sorted(ids)))
    write(folder / "train_test_split.txt", "".join(f"{i} {int(in_training[i])}\n" for i in sorted(ids)))
    write(folder / "classes.txt", "".join(f"{c} {c:03d}.Bird\n" for c in range(1, 201)))
    return folder


def cub_archive(file, members):
    with tarfile.open(file, "w") as archive:
        for i, name in enumerate(members):
            content = png(i)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def cars_tree(root, classes, test_classes, *, test_annotations="cars_test_annos_withlabels.mat"):
    """Classes from 1, as in the devkit."""
    folder = root / "stanford_cars"
    first = 0
    for part, file, of_part in (
        ("cars_train", "devkit/cars_train_annos.mat", classes),
        ("cars_test", test_annotations, test_classes),
    ):
        annotations = np.zeros(len(of_part), dtype=[("class", object), ("fname", object)])
        for i, number in enumerate(of_part):
            name = f"{len(of_part) - i:05d}.jpg"  # the annotations' order is not that of the names
            annotations[i] = (number, name)
            write(folder / part / name, png(first + i))
        first += len(of_part)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        savemat(folder / file, {"annotations": annotations})
    names = np.array([f"Car {i}" for i in range(196)], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    return folder


def aircraft_tree(root, variants, trainval, test):
    """``trainval`` and ``test``: the variant of each image."""
    data = root / "fgvc-aircraft-2013b" / "data"
    write(data / "variants.txt", "".join(f"{v}\n" for v in variants))
    i = 0
    for part, of_part in (("trainval", trainval), ("test", test)):
        lines = []
        for variant in of_part:
            write(data / "images" / f"{9000 - i}.jpg", png(i))
            lines.append(f"{9000 - i} {variant}\n")
            i += 1
        write(data / f"images_variant_{part}.txt", "".join(lines))
    return data.parent


def imagenet_tree(root, *, place="imagenet", per_class=2):
    """The 100 classes and one that is not among them, and a file that is no image."""
    wordnet_ids = published_split("imagenet100_gcd")["wnids"]
    i = 0
    for part in ("train", "val"):
        for wordnet_id in sorted([*wordnet_ids, "n00000001"]):
            for k in range(per_class if part == "train" else 1):
                number = 9999 if wordnet_id == "n00000001" else i
                write(root / place / part / wordnet_id / f"{wordnet_id}_{k}.JPEG", png(number))
                i += number == i
    write(root / place / "train" / wordnet_ids[0] / "readme.txt", "no image")
    return root / place


def herbarium_tree(root, *, classes=683):
    """Folders 0..682, one training image each, numbered as its folder; validation images of 5 and 10 only."""
    folder = root / "herbarium_19"
    for c in range(classes):
        write(folder / "small-train" / str(c) / f"{c}.jpg", png(c))
    for c in (5, 10):
        write(folder / "small-validation" / str(c) / f"{c}.jpg", png(c))
    return folder
