"""Label files of any size are read with little memory, or refused in seconds with a short sentence."""

import itertools
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from promptcal.data import ImageSet, label_files, read_labels
from promptcal.data.sources import FileSource
from promptcal.errors import LabelError, PromptCALError

NAMES = [f"{i}.png" for i in range(50)]
LONGEST_MESSAGE = 700  # characters


def read(file, names=NAMES):
    return read_labels(file, ImageSet(names, FileSource([]), Path("/photos")))


def refused(file, match):
    started = time.process_time()
    with pytest.raises(LabelError, match=match) as raised:
        read(file)
    assert len(str(raised.value)) < LONGEST_MESSAGE + len(str(file))
    assert "\n" not in str(raised.value)
    assert time.process_time() - started < 10


def write_blocks(file, start, block, size):
    """A file that begins with ``start`` and then repeats ``block`` up to its size in bytes."""
    with file.open("wb") as opened:
        opened.write(start)
        many = block * (2**20 // len(block) + 1)
        for _ in range(size // len(many)):
            opened.write(many)


BIG = 40 * 2**20
HUGE = {  # first bytes, what is repeated, and the message
    "unknown rows": (b"path,label\n", b"elsewhere/%d.jpg,cat\n", "label for elsewhere/.*and at least 1000 more"),
    "repeated rows": (b"path,label\n", b"1.png,cat\n", "has over 1,000,000 rows for 50 images"),
    "blank lines": (b"", b"\n", "has over 1,000,000 rows"),
    "blank rows": (b"path,label\n", b"\n", "has over 1,000,000 rows"),
    "a header": (b"path,label", b",column", "line 1 .* has over 100,000 characters"),
    "one line": (b"path,label\n1.png,", b"xxxxxxxx", "line 2 .* has over 1,000,000 characters"),
    "one quoted field": (b'path,label\n1.png,"', b"xxxxxxx\n", "field larger than field limit"),
    "one path": (b"path,label\n" + b"x" * 10_000 + b",a\n", b"2.png,b\n", "is no path of a file"),
    "long labels": (b"path,label\n", b"1.png," + b"x" * 100_000 + b"\n", "too large for 50 images"),
    "nothing": (b"", b"\0\0\0\0", "line 1 .* has over 100,000 characters"),
}


@pytest.mark.parametrize("what", HUGE)
def test_a_large_file_is_refused_soon_in_a_short_sentence(tmp_path, monkeypatch, what):
    start, block, message = HUGE[what]
    if what == "long labels":
        monkeypatch.setattr(label_files, "_MAX_CHARACTERS", 2**22)
    write_blocks(tmp_path / "l.csv", start, block, BIG)
    refused(tmp_path / "l.csv", message)


def test_columns_and_quotes_are_limited(tmp_path):
    (tmp_path / "l.csv").write_text(",".join(f"c{i}" for i in range(2000)) + "\n")
    refused(tmp_path / "l.csv", "has over 1000 columns")
    (tmp_path / "l.csv").write_text("x" * 90_000 + "\n")
    refused(tmp_path / "l.csv", "needs a header .*xxx \\.\\.\\. xxx")
    (tmp_path / "l.csv").write_text(f"path,label\n{'y' * 4000}.png,a\n")
    refused(tmp_path / "l.csv", "there is a label for yyy.* \\.\\.\\. .*no such image")
    (tmp_path / "l.csv").write_text(f"path,label\n1.png,{'a' * 9000}\n1.png,{'b' * 9000}\n")
    refused(tmp_path / "l.csv", "1.png has two labels, 'aaa.* and 'bbb")
    (tmp_path / "l.csv").write_text("path,label\n1.png,a\0b\n")
    refused(tmp_path / "l.csv", "NUL")
    (tmp_path / "l.csv").write_text("path,label\n/photos/1\0.png,b\n")
    refused(tmp_path / "l.csv", "no path of a file|NUL")


def test_every_message_is_short():
    error = PromptCALError("a" * 10**7 + "; do this")
    assert len(str(error)) <= 2000
    assert str(error).endswith("; do this")


def test_a_label_that_is_no_date_of_python_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    dates = pyarrow.array([2**62], pyarrow.timestamp("us"))
    parquet.write_table(pyarrow.table({"path": ["000.png"], "label": dates}), tmp_path / "l.parquet")
    refused(tmp_path / "l.parquet", "is not a readable parquet file .date value out of range")


def test_a_small_parquet_file_does_not_expand(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(path, label, **more):
        parquet.write_table(pyarrow.table({"path": path, "label": label, **more}), tmp_path / "l.parquet")
        assert (tmp_path / "l.parquet").stat().st_size < 2**21

    def repeated(value, n):
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * n, pyarrow.int32()), [value])

    write(repeated("1.png", 10**5), repeated("cat", 10**5))
    assert read(tmp_path / "l.parquet")[:3] == [None, "cat", None]
    write(repeated("1.png", 10**5), repeated("x" * 10**6, 10**5))  # 100 GB of labels
    refused(tmp_path / "l.parquet", "has a value of over 131,072 bytes")
    write(repeated("1.png", 2 * 10**6), repeated("cat", 2 * 10**6))
    refused(tmp_path / "l.parquet", "has over 1,000,000 rows for 50 images")
    write(["1.png"], [["cat", "dog"]])
    refused(tmp_path / "l.parquet", "a column of type list")
    write(["1.png"], ["a"], **{f"c{i}": ["x"] for i in range(1500)})
    assert read(tmp_path / "l.parquet")[1] == "a"
    write(["1.png", None], ["a", "b"])
    refused(tmp_path / "l.parquet", "row 2 of .* has no path")
    write(["1.png"], [1.0])
    assert read(tmp_path / "l.parquet")[1] == "1"


def test_parquet_that_unpacks_to_too_much_is_refused_by_its_own_figures(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"path": [f"{i}.png" for i in range(50)], "label": ["x" * 10**5] * 50})
    parquet.write_table(table, tmp_path / "l.parquet", compression="gzip", use_dictionary=False)
    assert (tmp_path / "l.parquet").stat().st_size < 10**5
    assert read(tmp_path / "l.parquet")[0] == "x" * 10**5
    monkeypatch.setattr(label_files, "_MAX_PARQUET_BYTES", 2**20)
    refused(tmp_path / "l.parquet", "unpacks to")


WRONGLY_DESCRIBED = Path(__file__).parents[1] / "fuzz/corpus/parquet/f59a99c12f1d3cb4"  # its column of paths


@pytest.mark.parametrize("most", [2**30, 0])
def test_a_parquet_file_with_a_wrongly_described_column_does_not_end_the_process(most):
    pytest.importorskip("pyarrow")
    program = "import sys; from promptcal.data import label_files as f; f._MAX_PARQUET_BYTES = int(sys.argv[2]); "
    program += "list(f.read_rows(f.Path(sys.argv[1]), 8))"
    ended = subprocess.run(
        [sys.executable, "-c", program, WRONGLY_DESCRIBED, str(most)], capture_output=True, text=True
    )
    assert ended.returncode == 1, ended.stderr
    assert "LabelError" in ended.stderr.splitlines()[-1]
    assert "is not a readable parquet file" in ended.stderr


def test_progress_of_a_large_file_is_told(tmp_path):
    names = [f"{i:06d}.png" for i in range(5000)]
    (tmp_path / "l.csv").write_text("path,label\n" + "".join(f"{name},a\n" for name in names))
    shares = []
    rows = list(label_files.read_rows(tmp_path / "l.csv", len(names), shares.append))
    assert rows[-1] == ("004999.png", "a")
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert 0 < shares[0] <= shares[-1] <= 1


def test_rows_are_not_kept(tmp_path):
    """Reading takes the memory of one row, whatever the size of the file."""
    with (tmp_path / "l.csv").open("w") as file:
        file.write("path,label\n")
        file.writelines(f"{i % 50}.png,cat\n" for i in range(10**5))
    rows = label_files.read_rows(tmp_path / "l.csv", 50)
    assert next(rows) == ("0.png", "cat")
    assert sum(1 for _ in itertools.islice(rows, 10**5)) == 10**5 - 1


@pytest.mark.slow
@pytest.mark.parametrize("what", HUGE)
def test_a_gigabyte_is_refused_by_the_command_line(tmp_path, what, small_folder):
    """Within a minute and two gigabytes of address space more than the program needs."""
    start, block, _ = HUGE[what]
    write_blocks(tmp_path / "l.csv", start, block, 2**30)
    command = [sys.executable, "-m", "promptcal", "check", small_folder, "--labels", tmp_path / "l.csv"]
    started = time.monotonic()
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        (tmp_path / "l.csv").unlink()
    print(what, round(time.monotonic() - started, 1), "s")
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()[-1]) < 2000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3 * 2**20
