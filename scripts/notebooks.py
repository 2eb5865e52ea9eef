"""Executes the notebooks: python scripts/notebooks.py OUT [NAME ...]

Each runs in an empty folder; OUT gets it with its output, which the site shows. A cell that fails or warns stops
everything. Needs `pip install '.[docs]'`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
SECONDS = 300
"""The longest that a cell may take, on a machine that does other things too."""


def execute(notebook: Path, out: Path) -> None:
    cells = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        # No open ports, where the system has sockets that are files.
        local = {"transport": "ipc", "ip": f"{sockets}/kernel"} if os.name == "posix" else {}
        place = {"metadata": {"path": folder}}
        NotebookClient(cells, km=AsyncKernelManager(**local), timeout=SECONDS, resources=place).execute()
    for cell in cells.cells:
        said = "".join(output.text for output in cell.get("outputs", []) if output.get("name") == "stderr")
        if "Warning" in said:
            sys.exit(f"{notebook.name}: a cell warned:\n{cell.source}\n\n{said}")
    nbformat.write(cells, out / notebook.name)


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    # With another program on one of two cores, threads that wait for each other took 251 s where one took 27.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # progress bars are plain text without ipywidgets
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if not names or notebook.stem in names:
            began = time.perf_counter()
            execute(notebook, out)
            print(f"{notebook.name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
