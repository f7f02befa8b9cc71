"""Rules for the source: attributes are set in constructors, modules have docstrings and distinct names.

Which package may import which is checked by `lint-imports` (see pyproject.toml).
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

import promptcal

SOURCE = Path(promptcal.__file__).parent
MODULES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}

CONSTRUCTORS = {"__init__", "__post_init__"}
REGISTRATIONS = {"register_buffer", "register_parameter", "register_module", "add_module"}

NAMES_USED_TWICE = {"kmeans"}  # the method, and the clustering algorithm
CLASSES_USED_TWICE = {"PromptCAL"}  # the method, and the scikit-learn estimator


def methods_of(cls):
    return [part for part in cls.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]


def assigned_attributes(method):
    """Names assigned on the first argument (`self`), with their lines."""
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments or any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in method.decorator_list):
        return
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id == arguments[0].arg:
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call):
            function, first = node.func, node.args[0] if node.args else None
            is_registration = isinstance(function, ast.Attribute) and function.attr in REGISTRATIONS
            if is_registration and isinstance(first, ast.Constant):
                yield first.value, node.lineno
            is_setattr = ast.unparse(function) in ("setattr", "object.__setattr__") and len(node.args) == 3
            if is_setattr and isinstance(first, ast.Name) and first.id == arguments[0].arg:
                yield ast.unparse(node.args[1]).strip("'\""), node.lineno


def declared_names(cls):
    """Names that the class itself declares: class-level assignments, fields, properties, and what constructors set."""
    names = {name for m in methods_of(cls) if m.name in CONSTRUCTORS for name, _ in assigned_attributes(m)}
    names |= {m.name for m in methods_of(cls)}
    for part in cls.body:
        targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def base_names(cls):
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in cls.bases]


def late_attributes(trees):
    """'file:line Class.name' of each attribute first set outside a constructor."""
    classes = {}
    for tree in trees.values():
        classes |= {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    def inherited(cls, seen=()):
        names, bases = declared_names(cls), set(base_names(cls))
        for base in bases & set(classes) - {cls.name, *seen}:
            more_names, more_bases = inherited(classes[base], (*seen, cls.name))
            names, bases = names | more_names, bases | more_bases
        return names, bases

    for file, tree in sorted(trees.items()):
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            declared, bases = inherited(cls)
            for method in methods_of(cls):
                if method.name in CONSTRUCTORS:
                    continue
                for name, line in assigned_attributes(method):
                    if name not in declared and not ("BaseEstimator" in bases and name.endswith("_")):
                        yield f"{file}:{line} {cls.name}.{name}"


def test_attributes_are_first_set_in_constructors():
    assert list(late_attributes(MODULES)) == []


@pytest.mark.parametrize(
    "body",
    [
        "def run(self): self.x = 1",
        "def run(self): self.a, self.x = 1, 2",
        "def run(this):\n  with open('f') as this.x: pass",
        "def run(self): setattr(self, 'x', 1)",
        "def __init__(self): self.y = 1\n def run(self): self.x: int = 1",
    ],
)
def test_late_attributes_are_found(body):
    assert [o.split()[1] for o in late_attributes({"m.py": ast.parse(f"class C:\n a = 0\n {body}")})] == ["C.x"]


@pytest.mark.parametrize(
    "text",
    [
        "class C:\n def __init__(self): self.x = 1\n def run(self): self.x = 2",
        "class C:\n x: int = 0\n def run(self): self.x = 2",
        "class C(Module):\n def __init__(self): self.register_buffer('x', t)\n def run(self): self.x = 2",
        "class B:\n def __init__(self): self.x = 1\nclass C(B):\n def run(self): self.x = 2",
        "class C(BaseEstimator):\n def fit(self): self.x_ = 2",
        "class C:\n def run(self, other): other.x = 2",
    ],
)
def test_declared_attributes_pass(text):
    assert list(late_attributes({"m.py": ast.parse(text)})) == []


def test_every_module_has_a_docstring():
    assert [file for file, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def test_module_names_are_distinct():
    counts = Counter(Path(file).stem for file in MODULES)
    assert {name for name, n in counts.items() if n > 1} == {"__init__", *NAMES_USED_TWICE}


def test_class_names_are_distinct():
    counts = Counter(node.name for tree in MODULES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, n in counts.items() if n > 1} == CLASSES_USED_TWICE
