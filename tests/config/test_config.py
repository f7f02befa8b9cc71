"""Settings: the paper's defaults, the variants, where values come from, and what is refused."""

import copy
from importlib import resources
from types import MappingProxyType

import pytest
import yaml

from promptcal.config.schema import Config, OptimConfig, load_config, presets, validate
from promptcal.errors import ConfigError


def config(*overrides, **values):
    return load_config(values={"n_classes": 10, **values}, overrides=overrides)


def plain(settings, *keys):
    values = settings.model_dump()
    for key in keys:
        values = values[key]
    return values


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
        "data": {"batch_size": 128, "validation_fraction": 0.1},
        "loss": {
            "alpha": 0.35,
            "beta": 0.6,
            "gamma": 0.35,
            "self_temperature": 1.0,
            "supervised_temperature": 0.07,
            "affinity_temperature": 0.07,
        },
        "optim": {"lr": 0.1, "min_lr": 1e-4, "momentum": 0.9, "weight_decay": 5e-5},
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
        "switches": {
            "prompt_pooling": "mean",
            "prompt_head": "new",
            "own_positive": "same-view",
            "keys": "memory",
            "negatives": "budget-minus-positives",
            "threshold_diagonal": True,
            "beta_ramp_epochs": 2.0,
        },
    }
    found = plain(config())
    for key, value in expected.items():
        if isinstance(value, dict):
            assert {k: found[key][k] for k in value} == value
        else:
            assert found[key] == value


def test_selection_is_honest_by_default():
    assert config().selection.by == "validation"


PAPER = {
    "prompt_pooling": "mean-of-normalised",
    "prompt_head": "from-warmup",
    "own_positive": "other-view",
    "keys": "memory-and-batch",
    "negatives": "whole-budget",
    "threshold_diagonal": False,
    "beta_ramp_epochs": 0.0,
}


def test_the_paper_variant_turns_every_switch_and_nothing_else():
    official, paper = plain(config()), plain(config("variant=paper"))
    assert paper.pop("switches") == PAPER
    assert official.pop("switches").keys() == PAPER.keys()
    assert {**paper, "variant": "official"} == official


@pytest.mark.parametrize("switch", PAPER)
def test_an_explicit_switch_wins_over_the_variant(switch):
    official = plain(config(), "switches", switch)
    values = {"variant": "paper", "switches": {switch: official}}
    expected = {**PAPER, switch: official}
    assert plain(config(**values), "switches") == expected
    assert plain(config("variant=paper", f"switches.{switch}={official}"), "switches") == expected


RECOMMENDED = yaml.safe_load((resources.files("promptcal") / "presets/variants/recommended.yaml").read_text("utf-8"))


def recommended_settings(found):
    return {section: {key: plain(found, section, key) for key in keys} for section, keys in RECOMMENDED.items()}


def test_the_recommended_variant_sets_what_its_file_says_and_nothing_else():
    official, recommended = plain(config()), plain(config("variant=recommended"))
    for section, keys in RECOMMENDED.items():
        assert official[section] != recommended[section]
        official[section] |= keys
    assert recommended == {**official, "variant": "recommended"}


@pytest.mark.parametrize("preset", [name for name in presets() if name != "quick"])
def test_the_recommended_variant_stands_above_a_benchmarks_preset_and_below_what_is_asked_for(preset):
    values = {"n_classes": 100, "variant": "recommended"}
    assert recommended_settings(load_config(preset=preset, values=values)) == RECOMMENDED
    asked = load_config(preset=preset, overrides=["affinity.quantile=0.3", "variant=recommended"], values=values)
    assert asked.affinity.quantile == 0.3
    assert asked.optim.lr == RECOMMENDED["optim"]["lr"]


def test_another_variant_than_a_files_takes_its_settings_back(written):
    saved = load_config(preset="cifar100", values={"variant": "recommended"})
    official = load_config(preset="cifar100")
    assert load_config(preset="cifar100", file=written(saved.to_yaml()), overrides=["variant=official"]) == official
    assert load_config(preset="cifar100", file=written(official.to_yaml()), overrides=["variant=recommended"]) == saved
    assert load_config(file=written(saved.to_yaml())) == saved


@pytest.mark.parametrize("before", ["official", "paper", "recommended"])
@pytest.mark.parametrize("after", ["official", "paper", "recommended"])
def test_another_variant_leaves_what_was_asked_for(written, before, after):
    """Of a saved configuration, a file by hand or a `Config`, whatever order the overrides are in."""
    asked = ["optim.lr=0.007", "switches.keys=memory-and-batch", "affinity.k=7", "loss.beta=0.3"]
    saved = load_config(preset="cub", overrides=[f"variant={before}", *asked])
    expected = load_config(preset="cub", overrides=[f"variant={after}", *asked])
    for source in ({"file": written(saved.to_yaml())}, {"values": saved.model_dump()}):
        found = load_config(preset="cub", **source, overrides=[f"variant={after}"])
        if before == "paper":  # whose own value of keys this is, so it cannot be told from one asked for
            found = load_config(
                preset="cub", **source, overrides=[f"variant={after}", "switches.keys=memory-and-batch"]
            )
        assert found == expected
    for order in (["optim.lr=0.05", f"variant={after}"], [f"variant={after}", "optim.lr=0.05"]):
        assert load_config(preset="cub", values=saved.model_dump(), overrides=order).optim.lr == 0.05
    by_hand = written(f"variant: {before}\noptim: {{lr: 0.02}}\naffinity: {{k: 9}}\n")
    found = load_config(preset="cub", file=by_hand, overrides=[f"variant={after}"])
    assert (found.optim.lr, found.affinity.k) == (0.02, 9)


def test_a_section_given_whole_is_laid_over_the_variants():
    found = Config(n_classes=3, variant="recommended", optim=OptimConfig(momentum=0.8))
    assert (found.optim.lr, found.optim.momentum) == (RECOMMENDED["optim"]["lr"], 0.8)


def test_the_recommended_variant_is_of_promptcal_only():
    assert config("variant=recommended", "method=promptcal-warmup").optim.lr == RECOMMENDED["optim"]["lr"]
    with pytest.raises(
        ConfigError, match="^variant=recommended is of the method promptcal; set variant=official for gcd$"
    ):
        config("variant=recommended", "method=gcd")


@pytest.mark.parametrize(("memory", "n_classes", "k"), [(4096, 100, 10), (4096, 200, 5), (20000, 683, 7), (8, 100, 1)])
def test_k_is_a_quarter_of_the_memory_per_class_where_it_is_not_set(memory, n_classes, k):
    assert config(f"affinity.memory={memory}", n_classes=n_classes).neighbours == k
    assert config(f"affinity.memory={memory}", "affinity.k=3", n_classes=n_classes).neighbours == 3


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("afinity", "affinity"),
        ("affinity.memroy", "affinity.memory"),
        ("optim.learning_rate", None),
        ("switches.key", "switches.keys"),
        ("nclasses", "n_classes"),
        ("model.prompt", "model.prompts"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(key, meant):
    with pytest.raises(
        ConfigError, match=f"there is no setting '{key}'" + (f"; did you mean '{meant}'" if meant else "")
    ):
        config(f"{key}=1")


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
        "selection.by=test",
        "switches.keys=batch",
        "switches.threshold_diagonal=maybe",
        "variant=Paper",
        "tensorboard=3",
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(override):
    key = override.split("=")[0]
    named = {"model.supervised_prompts": "model", "optim.lr.start": "optim.lr"}.get(key, key)
    with pytest.raises(ConfigError, match=f"the setting '{named}' is wrong: "):
        config(override)


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(ConfigError, match=r"'warmup.epochs' is wrong.*'affinity.k' is wrong"):
        config("warmup.epochs=-1", "affinity.k=0")


def test_numbers_may_be_written_as_yaml_reads_them():
    found = config("optim.lr=1e-3", "optim.weight_decay=0", "tensorboard=no", "model.weights=a=b.pth", "affinity.k=")
    assert (found.optim.lr, found.optim.weight_decay, found.tensorboard) == (0.001, 0.0, False)
    assert (found.model.weights, found.affinity.k) == ("a=b.pth", None)


@pytest.mark.parametrize("override", ["affinity.k", "=5", " = 5", ""])
def test_an_override_without_key_or_value_is_refused(override):
    with pytest.raises(ConfigError, match=r"--set takes key=value, such as affinity\.k=10"):
        config(override)


@pytest.mark.parametrize(
    "override", ["affinity.k=[1", "affinity.k={", "model.weights=@x", "seed=2024-99-99", "seed=a: b"]
)
def test_an_override_that_is_no_yaml_is_refused(override):
    with pytest.raises(ConfigError, match="is not valid YAML"):
        config(override)


@pytest.mark.parametrize("override", ["affinity..k=1", ".k=1", "affinity.=1"])
def test_an_override_with_an_empty_key_is_refused(override):
    with pytest.raises(ConfigError, match="there is no setting"):
        config(override)


def test_the_number_of_classes_must_be_given():
    with pytest.raises(ConfigError, match="the setting 'n_classes' is missing; give --n-classes"):
        load_config()


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
        ("seed: &a {b: *a}\n", "an alias in it stands for itself"),
        (b"\xff\xfe\x00\x01", "is not text; give a YAML file"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(written, content, message):
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


def test_a_missing_file_and_an_unknown_preset_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist; check the path"):
        load_config(file=tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"there is no preset 'quik'; choose one of .*quick"):
        load_config(preset="quik")


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


def test_the_callers_values_are_left_alone():
    values = {"n_classes": 3, "affinity": {"k": 5}}
    before = copy.deepcopy(values)
    assert load_config(values=MappingProxyType(values), overrides=["affinity.k=7"]).affinity.k == 7
    assert values == before


def test_sections_that_share_a_yaml_anchor_can_be_overridden_apart(written):
    file = written("n_classes: 3\nwarmup: &stage {epochs: 5}\naffinity: *stage\n")
    found = load_config(file=file, overrides=["warmup.epochs=9"])
    assert (found.warmup.epochs, found.affinity.epochs) == (9, 5)


@pytest.mark.parametrize("overrides", [[], ["variant=paper"], ["affinity.k=3", "model.weights='é: #1.pth'"]])
def test_yaml_written_reads_back_the_same(written, overrides):
    original = config(*overrides)
    assert load_config(file=written(original.to_yaml())) == original
    assert validate(yaml.safe_load(original.to_yaml())) == original


@pytest.mark.parametrize("preset", presets())
def test_every_preset_loads_and_reads_back(preset, written):
    found = load_config(preset=preset, values={"n_classes": 12})
    assert found.n_classes == 12
    assert load_config(file=written(found.to_yaml())) == found


def test_the_demos_preset_is_listed():
    assert "quick" in presets()


def test_a_config_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        config().seed = 3


def test_another_variant_replaces_the_switches_of_an_earlier_source(written):
    official, paper = config(), config("variant=paper")
    assert load_config(file=written(official.to_yaml()), overrides=["variant=paper"]) == paper
    assert load_config(file=written(paper.to_yaml()), overrides=["variant=official"]) == official
    kept = load_config(file=written(paper.to_yaml()), overrides=["switches.keys=memory"])
    assert (kept.switches.keys, kept.switches.negatives) == ("memory", "whole-budget")


def test_weights_and_no_pretraining_contradict_each_other():
    with pytest.raises(ConfigError, match="weights are given, so pretrained cannot be no"):
        load_config(values={"n_classes": 2}, overrides=["model.weights=some.pth", "model.pretrained=false"])
    assert load_config(values={"n_classes": 2}).model.pretrained
