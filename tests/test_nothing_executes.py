"""No line of the source loads data or code in a way that could execute what a file says."""

import ast
from pathlib import Path

import pytest

import promptcal
from promptcal.data import benchmarks
from promptcal.errors import ConfigError
from promptcal.methods import METHODS

SOURCE = Path(promptcal.__file__).parent
# Whatever the arguments, these execute, import or unpack what they are given.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load",
    "marshal.loads", "shelve.open", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load", "torch.hub.load",
    "torch.package.PackageImporter", "torch.serialization.add_safe_globals", "os.system", "os.popen",
    "shutil.unpack_archive", "importlib.import_module", "importlib.metadata.EntryPoint",
    "importlib.metadata.entry_points", "pkgutil.resolve_name", "runpy.run_path", "runpy.run_module",
    "datasets.load_dataset", "pandas.read_pickle",
}  # fmt: skip
FORBIDDEN_METHODS = {"extractall", "read_pickle", "unpack_archive"}
# Only these import by name: modules of this package, and what installed packages declare. None reads a file for it.
IMPORTERS = {
    "__init__.py": {"importlib.import_module"},
    "app/side_process.py": {"importlib.import_module"},
    "exporters/__init__.py": {"importlib.import_module"},
    "runtime/lazy_names.py": {"importlib.import_module"},
    "shards/engines/__init__.py": {"importlib.import_module"},
    "data/benchmarks/spec.py": {"pkgutil.resolve_name"},
    "runtime/plugins.py": {"importlib.metadata.EntryPoint", "importlib.metadata.entry_points"},
}
# These are safe only with a certain argument.
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
    """The full name of each imported name: `from torch import load as l` makes l the name of torch.load."""
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


def test_the_source_executes_nothing_that_it_loads():
    files = {file.relative_to(SOURCE).as_posix(): file.read_text("utf-8") for file in SOURCE.rglob("*.py")}
    assert len(files) > 100
    found = {(name, what) for name, text in files.items() for _, what in unsafe_lines(text)}
    assert found == {(name, what) for name, importers in IMPORTERS.items() for what in importers}


def test_plug_ins_are_looked_up_by_name():
    """A name from a config or a run is only a key: of the built-in plug-ins or of the installed ones."""
    for registry in (METHODS, benchmarks.BENCHMARKS):
        for name in ("os:system", "os.system", "promptcal.methods.gcd:GCD", "promptcal.methods.gcd", "__class__", ""):
            assert name not in registry
            with pytest.raises(ConfigError, match=f"there is no {registry.kind} '{name}'; choose one of "):
                registry[name]


def test_the_only_unpickler_is_restricted():
    """CIFAR is published as pickles, which only a subclass with its own find_class reads."""
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
        "from importlib import import_module as load\nload(name)",
        "from importlib.metadata import EntryPoint\nEntryPoint(name, value, group).load()",
        "import joblib\njoblib.load(f)",
    ],
)
def test_unsafe_calls_are_found(line):
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
def test_safe_calls_pass(line):
    assert unsafe_lines(line) == []
