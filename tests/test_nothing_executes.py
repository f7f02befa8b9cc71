"""No line of the source loads data in a way that could run it."""

import ast
from pathlib import Path

import pytest

import promptcal

SOURCE = Path(promptcal.__file__).parent
# Called with any arguments, these run or unpack what they are given.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load",
    "marshal.loads", "shelve.open", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load", "torch.hub.load",
    "torch.package.PackageImporter", "torch.serialization.add_safe_globals", "os.system", "os.popen",
    "shutil.unpack_archive", "importlib.import_module", "datasets.load_dataset", "pandas.read_pickle",
}  # fmt: skip
FORBIDDEN_METHODS = {"extractall", "read_pickle", "unpack_archive"}
# And these only with an argument that makes them safe.
NEEDED = {
    "torch.load": ("weights_only", lambda value: value is True),
    "np.load": ("allow_pickle", lambda value: value is False),
    "numpy.load": ("allow_pickle", lambda value: value is False),
    "Image.open": ("formats", lambda value: value is not None),
    "PIL.Image.open": ("formats", lambda value: value is not None),
}
UNSAFE_YAML = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "CUnsafeLoader"}


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "(...)", *reversed(parts)])


def aliases(tree):
    """What each imported name stands for: `from torch import load as l` makes l stand for torch.load."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                      for a in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def unsafe_lines(text):
    """Line and reason of each call that could run data."""
    tree = ast.parse(text)
    known = aliases(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in UNSAFE_YAML and dotted(node.value) == "yaml":
            found.append((node.lineno, f"yaml.{node.attr}"))
        if not isinstance(node, ast.Call):
            continue
        plain = dotted(node.func)
        head, dot, rest = plain.partition(".")
        name = known.get(head, head) + dot + rest
        given = {k.arg: k.value.value if isinstance(k.value, ast.Constant) else ... for k in node.keywords}
        short = name.replace("numpy.", "np.", 1).replace("PIL.Image.", "Image.", 1)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS
        if name in FORBIDDEN or is_method:
            found.append((node.lineno, name))
        if short in NEEDED:
            argument, is_safe = NEEDED[short]
            if argument not in given or not is_safe(given[argument]):
                found.append((node.lineno, f"{name} without a safe {argument}"))
        if given.get("shell") is True or "trust_remote_code" in given:
            found.append((node.lineno, f"{name} with shell or trust_remote_code"))
    return found


def test_the_source_loads_nothing_that_could_run():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = [f"{f.relative_to(SOURCE)}:{line} {why}" for f in files for line, why in unsafe_lines(f.read_text("utf-8"))]
    assert found == []


def test_the_one_unpickler_is_restricted():
    """CIFAR is published as pickles: a subclass with a find_class of its own is the only way in."""
    users = [f for f in SOURCE.rglob("*.py") if "pickle" in aliases(ast.parse(f.read_text("utf-8")))]
    assert [f.name for f in users] == ["cifar.py"]
    classes = [node for node in ast.walk(ast.parse(users[0].read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
    of_pickle = [c for c in classes if any(dotted(base) == "pickle.Unpickler" for base in c.bases)]
    assert len(of_pickle) == 1
    assert "find_class" in [part.name for part in of_pickle[0].body if isinstance(part, ast.FunctionDef)]


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import torch as t\nt.load(f, weights_only=safe)",
        "from torch import load\nload(f)",
        "import pickle\npickle.loads(b)",
        "import pickle as p\np.Unpickler(f).load()",
        "from pickle import load as read\nread(f)",
        "import numpy as np\nnp.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import yaml\nyaml.load(t, Loader=yaml.UnsafeLoader)",
        "import yaml\nyaml.full_load(t)",
        "eval(text)",
        "exec(text)",
        "from PIL import Image\nImage.open(f)",
        "import tarfile\ntarfile.open(f).extractall(d)",
        "import shutil\nshutil.unpack_archive(f)",
        "import os\nos.system(c)",
        "import subprocess\nsubprocess.run(c, shell=True)",
        "import importlib\nimportlib.import_module(name)",
        "import joblib\njoblib.load(f)",
    ],
)
def test_the_walk_finds_what_is_unsafe(line):
    assert unsafe_lines(line)


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.load(f, weights_only=True)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import yaml\nyaml.safe_load(t)",
        "model.eval()",
        "build(x).to(device).eval()",
        "re.compile(p)",
        "json.load(f)",
        "vit.compile(dynamic=False)",
    ],
)
def test_the_walk_lets_what_is_safe_pass(line):
    assert unsafe_lines(line) == []
