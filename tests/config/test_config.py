"""Settings: the paper's defaults, the variants, which source wins, and what is rejected."""

import copy
from types import MappingProxyType

import pytest
import yaml

from promptcal.config.names import preset_names
from promptcal.errors import ConfigError
from promptcal.methods import METHODS, load_config, read_config
from promptcal.methods.promptcal.settings import PAPER, RECOMMENDED, RELEASE


def config(*overrides, **values):
    return load_config(values={"n_classes": 10, **values}, overrides=overrides)


def test_defaults_are_the_published_hyper_parameters():
    expected = {
        "variant": "official",
        "model": {
            "backbone": "vit_base_patch16_224.dino",
            "prompts": 5,
            "supervised_prompts": 2,
            "train_blocks": 1,
            "head_hidden": 2048,
            "head_bottleneck": 256,
            "head_prototypes": 65536,
        },
        "data": {"batch_size": 128, "sampling": "balanced", "validation_fraction": 0.1},
        "loss": {
            "alpha": 0.35,
            "beta": 0.6,
            "gamma": 0.35,
            "self_temperature": 1.0,
            "supervised_temperature": 0.07,
            "affinity_temperature": 0.07,
        },
        "optim": {
            "epochs": 200,
            "lr": 0.1,
            "schedule": "cosine",
            "min_lr": 1e-4,
            "momentum": 0.9,
            "weight_decay": 5e-5,
        },
        "warmup": {"epochs": 200},
        "affinity": {
            "epochs": 70,
            "k": None,
            "quantile": 0.5,
            "memory": 4096,
            "negatives": 1024,
            "diffusion_steps": 1,
            "teacher_momentum": 0.999,
        },
        "clustering": {"n_init": 100, "max_iter": 200, "tol": 1e-4},
        "selection": {"by": "validation"},  # which needs no truth
    }
    found = config().model_dump()
    for key, value in expected.items():
        assert (value if not isinstance(value, dict) else found[key] | value) == found[key]


def test_the_variants_select_a_recipe():
    assert config().recipe == config("variant=recommended").recipe == RELEASE
    assert config("variant=paper").recipe == PAPER
    assert all(getattr(PAPER, name) != value for name, value in vars(RELEASE).items())
    assert vars(RELEASE) == {
        "prompt_pooling": "mean",
        "reset_prompt_head": True,
        "own_view_positive": True,
        "batch_keys": False,
        "subtract_positives": True,
        "threshold_diagonal": True,
        "beta_ramp_epochs": 2.0,
    }


def test_the_paper_variant_changes_no_setting_and_the_recommended_one_only_those_it_lists():
    official = config().model_dump()
    assert config("variant=paper").model_dump() == {**official, "variant": "paper"}
    for section, values in RECOMMENDED.items():
        assert official[section] != official[section] | values
        official[section] |= values
    assert config("variant=recommended").model_dump() == {**official, "variant": "recommended"}


@pytest.mark.parametrize("preset", [name for name in preset_names() if name != "quick"])
def test_the_recommended_variant_wins_over_a_preset_and_loses_against_given_settings(preset):
    values = {"n_classes": 100, "variant": "recommended"}
    found = load_config(preset=preset, values=values).model_dump()
    assert all(found[section] == found[section] | keys for section, keys in RECOMMENDED.items())
    given = load_config(preset=preset, overrides=["affinity.quantile=0.3", "variant=recommended"], values=values)
    assert (given.affinity.quantile, given.optim.lr) == (0.3, RECOMMENDED["optim"]["lr"])


def test_variants_belong_to_methods():
    assert config("variant=recommended", "method=promptcal-warmup").optim.lr == RECOMMENDED["optim"]["lr"]
    for method, variant in (("gcd", "recommended"), ("gcd", "paper"), ("promptcal", "Paper"), ("promptcal", [])):
        with pytest.raises(ConfigError, match=f"^the method {method} has no variant .*; choose one of official"):
            config(method=method, variant=variant)


@pytest.mark.parametrize(("memory", "n_classes", "k"), [(4096, 100, 10), (4096, 200, 5), (20000, 683, 7), (8, 100, 1)])
def test_k_is_a_quarter_of_the_memory_per_class_if_it_is_not_set(memory, n_classes, k):
    assert config(f"affinity.memory={memory}", n_classes=n_classes).neighbours == k
    assert config(f"affinity.memory={memory}", "affinity.k=3", n_classes=n_classes).neighbours == 3


@pytest.mark.parametrize(
    ("method", "key", "meant"),
    [
        ("promptcal", "afinity", "affinity"),
        ("promptcal", "affinity.memroy", "affinity.memory"),
        ("promptcal", "optim.learning_rate", None),
        ("promptcal", "nclasses", "n_classes"),
        ("promptcal", "model.prompt", "model.prompts"),
        ("promptcal", ".k", None),
        ("promptcal", "affinity..k", None),
        ("gcd", "warmup", None),
        ("gcd", "affinity", None),
    ],
)
def test_an_unknown_setting_is_rejected_and_the_most_similar_one_named(method, key, meant):
    name = key.partition("..")[0] + "." if ".." in key else key.partition(".")[0] if key[0] == "." else key
    hint = f"; did you mean '{meant}'" if meant else ""
    with pytest.raises(ConfigError, match=f"the method {method} has no setting '{name}'{hint}"):
        config(f"{key}=1", method=method)


# Settings of earlier versions, the method they were used with, and what the error must name.
RENAMED = {
    "selection.every=2": ("promptcal", "'selection.validate_every'"),
    "switches.keys=memory": ("promptcal", "variant=paper"),
    "data.zoom=0.5": ("promptcal", "removed"),
    "affinity.threshold=row": ("promptcal", "removed"),
    "affinity.class_share=0.5": ("promptcal", "removed"),
    "affinity.keep=teacher": ("promptcal", "removed"),
    "warmup.distillation=photos": ("promptcal", "'data.generic_images'"),
    "warmup.distillation_weight=0.1": ("promptcal", "removed"),
    "gcd.epochs=3": ("gcd", "'optim.epochs'"),
    "simgcd.epochs=3": ("simgcd", "'optim.epochs'"),
    "orca.epochs=3": ("orca", "'optim.epochs'"),
    "uno.epochs=3": ("uno", "'optim.epochs'"),
    "rankstats.epochs=3": ("rankstats", "'optim.epochs'"),
}


@pytest.mark.parametrize("setting", RENAMED)
def test_a_setting_of_an_earlier_version_is_rejected_with_its_new_name(setting, tmp_path):
    method, named = RENAMED[setting]
    section, _, rest = setting.partition(".")
    key, _, value = rest.partition("=")
    (tmp_path / "old.yaml").write_text(f"n_classes: 10\nmethod: {method}\n{section}:\n  {key}: {value}\n")
    for load in (
        lambda: config(setting, method=method),
        lambda: load_config(file=tmp_path / "old.yaml"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^the setting '{section}(\.{key})?' is of an earlier version: .*{named}"
        ):
            load()


@pytest.mark.parametrize(
    "override",
    [
        "seed=-1",
        "seed=1.5",
        "seed=yes",
        "n_classes=0",
        "n_classes=many",
        "n_classes=true",
        "n_classes=",
        "method=3",
        "model=5",
        "model=",
        "model.backbone=7",
        "model.weights=no",
        "model.prompts=-1",
        "model.supervised_prompts=6",
        "model.image_size=4",
        "data.batch_size=1",
        "data.batch_size=[64]",
        "data.validation_fraction=1",
        "loss.alpha=1.5",
        "loss.alpha=.nan",
        "loss.gamma=.inf",
        "loss.gamma=on",
        "loss.self_temperature=0",
        "optim.lr=0",
        "optim.lr=fast",
        "optim.lr.start=1",
        "optim.momentum=1",
        "warmup.epochs=-5",
        "affinity.k=0",
        "affinity.quantile=1.01",
        "affinity.teacher_momentum=-0.1",
        "affinity.consensus=maybe",
        "selection.by=test",
        "tensorboard=3",
    ],
)
def test_a_wrong_value_is_rejected_with_the_name_of_its_setting(override):
    key = override.split("=")[0]
    named = {"model.supervised_prompts": "model", "optim.lr.start": "optim.lr"}.get(key, key)
    with pytest.raises(ConfigError, match=f"the setting '{named}' is wrong: "):
        config(override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["warmup.epochs=-1", "affinity.k=0"], r"'warmup.epochs' is wrong.*'affinity.k' is wrong"),  # all at once
        (["model.weights=some.pth", "model.pretrained=false"], "weights are given, so pretrained cannot be no"),
        (["affinity.k"], r"--set takes key=value, such as affinity\.k=10"),
        (["=5"], "--set takes key=value"),
        ([" = 5"], "--set takes key=value"),
        ([""], "--set takes key=value"),
        *(
            ([text], "is not valid YAML")
            for text in ("affinity.k=[1", "affinity.k={", "model.weights=@x", "seed=2024-99-99", "seed=a: b")
        ),
        (["n_classes=auto"], "n_classes=auto needs images to estimate it"),
        (["method=os:system"], r"^there is no method 'os:system'; choose one of promptcal, promptcal-warmup, gcd"),
    ],
)
def test_wrong_settings_are_rejected_with_a_reason(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_numbers_may_be_written_in_any_way_of_yaml():
    found = config("optim.lr=1e-3", "optim.weight_decay=0", "tensorboard=no", "model.weights=a=b.pth", "affinity.k=")
    assert (found.optim.lr, found.optim.weight_decay, found.tensorboard) == (0.001, 0.0, False)
    assert (found.model.weights, found.affinity.k) == ("a=b.pth", None)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="the setting 'n_classes' is missing; give --n-classes, a number or auto,"):
        load_config()
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist; check the path"):
        load_config(file=tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"there is no preset 'quik'; choose one of .*quick"):
        load_config(preset="quik")


@pytest.fixture
def written(tmp_path):
    def write(content):
        file = tmp_path / "config.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "must be a YAML mapping of settings, not a list"),
        ("just text", "must be a YAML mapping of settings, not a str"),
        ("affinity: {k: 5\n", "is not valid YAML"),
        ("a: b: c\n", "is not valid YAML"),
        ("seed: 2024-99-99\n", "is not valid YAML"),
        ("1: 2\n", "'1' is wrong"),
        ("optim: {0.1: 1, null: 2}\n", "'optim.0.1' is wrong: keys should be strings"),
        ("seed: &a {b: *a}\n", "an alias .* itself"),
        (b"\xff\xfe\x00\x01", "is not text; give a YAML file"),
    ],
)
def test_a_file_without_settings_is_rejected(written, content, message):
    with pytest.raises(ConfigError, match=message):
        load_config(file=written(content), values={"n_classes": 3})


def test_python_tags_in_yaml_are_not_executed(written, tmp_path):
    trace = tmp_path / "executed"
    for tag in (f"!!python/object/apply:os.mkdir ['{trace}']", f"!!python/object/new:os.mkdir ['{trace}']"):
        with pytest.raises(ConfigError, match="is not valid YAML"):
            load_config(file=written(f"n_classes: 3\nseed: {tag}\n"))
        with pytest.raises(ConfigError, match="is not valid YAML"):
            config(f"seed={tag}")
    assert not trace.exists()


def test_an_empty_file_and_a_byte_order_mark_are_no_error(written):
    assert load_config(file=written(""), values={"n_classes": 3}) == load_config(values={"n_classes": 3})
    assert load_config(file=written("\ufeffn_classes: 4\n")).n_classes == 4


def test_the_later_source_wins_and_the_rest_of_a_section_stays(written):
    preset = load_config(preset="quick", values={"n_classes": 3})
    assert preset.model.backbone != config().model.backbone
    file = written("affinity: {memory: 2000, negatives: 100, k: 4, epochs: 2}\n")
    found = load_config(
        preset="quick",
        file=str(file),
        values={"n_classes": 3, "affinity": {"negatives": 200, "k": 5}},
        overrides=["affinity.k=6", "affinity.k=7"],
    )
    assert (found.affinity.memory, found.affinity.epochs) == (2000, 2)
    assert (found.affinity.negatives, found.affinity.k) == (200, 7)
    assert found.affinity.quantile == preset.affinity.quantile
    assert (found.model, found.data) == (preset.model, preset.data)
    assert found.loss.alpha == config().loss.alpha


def test_a_given_number_of_classes_is_not_an_estimate(written):
    file = written("n_classes: 23\nn_classes_estimated: true\n")
    assert load_config(file=file).n_classes_estimated
    assert not load_config(file=file, values={"n_classes": 30}).n_classes_estimated
    assert not load_config(file=file, overrides=["n_classes=30"]).n_classes_estimated


def test_the_callers_values_are_not_changed():
    values = {"n_classes": 3, "affinity": {"k": 5}}
    before = copy.deepcopy(values)
    assert load_config(values=MappingProxyType(values), overrides=["affinity.k=7"]).affinity.k == 7
    assert values == before


def test_sections_that_share_a_yaml_anchor_are_overridden_separately(written):
    file = written("n_classes: 3\nwarmup: &stage {epochs: 5}\naffinity: *stage\n")
    found = load_config(file=file, overrides=["warmup.epochs=9"])
    assert (found.warmup.epochs, found.affinity.epochs) == (9, 5)


@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_with_every_method_reads_back_the_same(preset, method, written):
    found = load_config(preset=preset, values={"n_classes": 12, "method": method})
    assert (found.n_classes, found.method) == (12, method)
    assert load_config(file=written(found.to_yaml())) == read_config(found.to_yaml()) == found


@pytest.mark.parametrize("overrides", [["variant=paper"], ["affinity.k=3", "model.weights='é: #1.pth'"]])
def test_written_yaml_reads_back_the_same(overrides):
    original = config(*overrides)
    assert read_config(original.to_yaml()) == original
    assert yaml.safe_load(original.to_yaml()) == original.model_dump(mode="json")


@pytest.mark.parametrize("method", ["promptcal", "kmeans"])
def test_yaml_truncated_anywhere_is_rejected(method):
    text = config(method=method).to_yaml().rstrip()
    for length in range(len(text)):
        with pytest.raises(ValueError, match="^it was truncated: its end marker is missing$"):
            read_config(text[:length])


def test_a_saved_config_with_an_unknown_variant_is_rejected():
    with pytest.raises(ConfigError, match="has no variant 'mine'"):
        read_config(config().to_yaml().replace("variant: official", "variant: mine"))


def test_a_config_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        config().seed = 3


def test_the_variant_of_a_saved_configuration_cannot_be_changed(written):
    saved = config("variant=recommended")
    for overrides in (["variant=official"], ["optim.lr=0.1", "variant=paper"]):
        for source in ({"file": written(saved.to_yaml())}, {"values": saved.model_dump()}):
            with pytest.raises(ConfigError, match="with variant=recommended cannot be changed to variant="):
                load_config(**source, overrides=overrides)
    assert load_config(file=written(saved.to_yaml()), overrides=["variant=recommended", "seed=3"]).optim == saved.optim
