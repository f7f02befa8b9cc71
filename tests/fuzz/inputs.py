"""Inputs for the fuzzer: bytes of sound files changed at random, and sound structures with hostile values in them."""

import copy
import csv
import io
import json

import yaml
from hypothesis import strategies as st

HOSTILE_TEXTS = [
    "", " ", "\0", "a\0b", "\ud800", "..", "../../x", "/", "/etc/passwd", "~", "-", "nan", "a" * 5000, "a/" * 3000,
    "\n", "\x1b[31m", "[red]x[/red]", "[/]", "{0}", "%s", "$HOME", "`id`", "<script>", '"', "'", ",", ";", "=1+1",
    "\u202e", "ü", "hf-hub:x/y", "cuda:99", "meta", "last", "promptcal", "null", "~user",
]  # fmt: skip
HOSTILE_NUMBERS = [
    0, 1, -1, 2, 7, 8, 255, 2**31, 2**63, 2**64, 10**24, -(10**24), 0.5, -0.0, 1e-320, 1e-6, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip


_MOST_CHARACTERS = 10**7  # of values that are added at one place


def deep(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = [None, True, False, [], {}, [[]], [None], {"": 1}, deep(50), *HOSTILE_TEXTS, *HOSTILE_NUMBERS]
# copies, because a value that is put into a structure may be changed there
_HOSTILE = st.sampled_from(range(len(HOSTILE))).map(lambda number: copy.deepcopy(HOSTILE[number]))
VALUES = st.one_of(_HOSTILE, st.integers(), st.floats(), st.text())


@st.composite
def changed_bytes(draw, sound):
    """One of the sound files with bytes overwritten, cut out, repeated or put in anywhere."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "put", "cut", "cut off", "repeat", "number"]))
        if kind == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "put":
            data[place:place] = draw(st.binary(max_size=12))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 64))]
        elif kind == "cut off":
            del data[place:]
        elif kind == "repeat":
            length = draw(st.integers(1, 64))
            data[place:place] = data[place : place + length] * draw(st.sampled_from([1, 2, 100]))
        elif kind == "number":
            size = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1]))
            data[place : place + size] = number.to_bytes(size, draw(st.sampled_from(["little", "big"])))
    return bytes(data)


def _places(value, path=()):
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield from _places(inner, (*path, key))


@st.composite
def changed_values(draw, sound, most=1000):
    """A structure of lists and dictionaries in which some values are replaced or removed, or up to ``most`` others are
    added at one place."""
    changed = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_places(changed))))
        if not path:
            if draw(st.integers(0, 20)) == 0:
                return draw(VALUES)
            continue
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        kind = draw(st.sampled_from([*["replace"] * 6, *["remove"] * 2, *["add"] * 2, "add many"]))
        if kind == "replace":
            holder[path[-1]] = draw(VALUES)
        elif kind == "remove":
            del holder[path[-1]]
        elif kind == "add many":
            value, number = draw(VALUES), draw(st.sampled_from([100, most]))
            number = min(number, _MOST_CHARACTERS // (1 + len(repr(value))))
            added = [value] * number if draw(st.booleans()) else [f"text {i}" for i in range(number)]
            if isinstance(holder, list):
                holder.extend(added)
            else:
                holder.update(zip(map(str, range(number)), added, strict=True))
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=5))] = draw(VALUES)
        else:
            holder.append(draw(VALUES))
    return changed


def json_text(sound):
    return changed_values(json.loads(sound), 300_000).map(lambda value: json.dumps(value).encode())


def yaml_text(sound):
    def dump(value):
        try:
            return yaml.safe_dump(value, sort_keys=False, explicit_end=True).encode("utf-8", "surrogatepass")
        except (yaml.YAMLError, RecursionError):
            return b"...\n"

    return changed_values(yaml.safe_load(sound)).map(dump)


def csv_text(sound):
    rows = list(csv.reader(io.StringIO(sound.decode())))

    def dump(value):
        text = io.StringIO()
        for row in value if isinstance(value, list) else []:
            csv.writer(text, lineterminator="\n").writerow(row if isinstance(row, list) else [row])
        return text.getvalue().encode("utf-8", "surrogatepass")

    return changed_values(rows).map(dump)
