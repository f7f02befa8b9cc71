"""Progress in a notebook is shown and updated by IPython alone."""

import io
import sys
import types
import warnings

import pytest
from rich.console import Console

from promptcal.runtime import progress
from promptcal.runtime.progress import progress_bar, show_progress, working


class Outputs:
    """What a notebook's cell shows: one text for each display, which its handle replaces."""

    def __init__(self):
        self.shown, self.n_updates = [], 0

    def display(self, content, raw=False, display_id=None, **more):
        self.shown.append(content["text/html"] if raw else content.html)
        number = len(self.shown) - 1

        def update(content, raw):
            self.n_updates += 1
            self.shown[number] = content["text/html"]

        return types.SimpleNamespace(update=update) if display_id else None


@pytest.fixture
def cell(monkeypatch):
    outputs = Outputs()
    module = types.ModuleType("IPython.display")
    module.display = outputs.display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # rich shows nothing without it
    return outputs


def test_a_notebook_shows_one_output_that_is_updated(cell, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_UPDATES", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with progress_bar(Console(stderr=True, force_jupyter=True)) as bar:
            task = bar.add_task("a <b> step", total=4, note="loss 1.5")
            bar.advance(task)
            assert "1/4" in cell.shown[0]
            bar.update(task, completed=3, note="loss 0.5")
            assert "3/4" in cell.shown[0]
            bar.update(task, completed=4)
    assert len(cell.shown) == 1
    assert "a &lt;b&gt; step" in cell.shown[0]
    assert "4/4" in cell.shown[0]
    assert "loss 0.5" in cell.shown[0]


def test_updates_are_rare_but_the_last_state_is_shown(cell):
    with progress_bar(Console(stderr=True, force_jupyter=True)) as bar:
        task = bar.add_task("step", total=1000, note="")
        for _ in range(1000):
            bar.advance(task)
    assert cell.n_updates < 100
    assert "1000/1000" in cell.shown[0]


def test_a_quiet_console_shows_nothing(cell, capsys):
    with progress_bar(Console(stderr=True, force_jupyter=True, quiet=True)) as bar:
        bar.advance(bar.add_task("step", total=1, note=""))
    assert cell.shown == []
    assert capsys.readouterr() == ("", "")


def test_a_terminal_uses_the_bars_of_rich(cell, capsys):
    with progress_bar(Console(stderr=True)) as bar:
        bar.advance(bar.add_task("step", total=1, note=""))
    assert cell.shown == []
    assert "step" in capsys.readouterr().err


@pytest.mark.parametrize(("total", "shown"), [(4, "3/4"), (None, "3/?")])
def test_a_step_shows_what_is_done_of_it(cell, total, shown):
    """Also of a source whose length is not known."""
    with show_progress(Console(stderr=True, force_jupyter=True), "sampling images", total) as show:
        show(1)
        show(3)
    assert "sampling images" in cell.shown[0]
    assert shown in cell.shown[0]


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut_off(width):
    """The longest line of a fit, with the note of its recorder."""
    console = Console(file=io.StringIO(), force_terminal=True, force_jupyter=False, width=width, color_system=None)
    with progress_bar(console) as bar:
        bar.add_task("PromptCAL stage 2, affinity learning", total=36, completed=23, note="55 min in total")
    shown = console.file.getvalue()
    assert "23/36" in shown
    assert "left  55 min in total" in shown
    assert "…" not in shown


def test_a_step_of_unknown_length_is_named(cell):
    with working(Console(stderr=True, force_jupyter=True), "exporting"):
        assert "exporting ..." in cell.shown[0]
