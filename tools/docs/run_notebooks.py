"""Run the notebooks, each in an empty folder, and store their output.

python tools/docs/run_notebooks.py [NOTEBOOK ...]
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SECONDS = 1200  # for a cell


def main() -> None:
    for file in map(Path, sys.argv[1:] or sorted(FOLDER.glob("*.ipynb"))):
        print(file, flush=True)
        nbformat.write(run(file), file)


def run(file: Path) -> nbformat.NotebookNode:
    """The notebook with the output of its cells, without times and other things that differ from run to run."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory(prefix="promptcal-notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources)
        client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [kept for kept in cell.outputs if kept.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = None
                    output.data.pop("image/jpeg", None)  # the same picture as image/png
    return notebook


if __name__ == "__main__":
    main()
