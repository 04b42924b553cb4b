"""The notebook of the documentation runs in a real kernel of Jupyter."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "training.ipynb"


@pytest.mark.slow
def test_the_notebook_trains_what_stands_in_its_cells(tmp_path: Path) -> None:
    shutil.copy(NOTEBOOK, tmp_path)
    command = [Path(sys.executable).with_name("jupyter-execute"), "--allow-errors", "--inplace", NOTEBOOK.name]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    cells = [cell for cell in json.loads((tmp_path / NOTEBOOK.name).read_text())["cells"] if "outputs" in cell]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"], outputs
    *_, result, plan, said = (cell["outputs"] for cell in cells)
    assert "srcdoc" in "".join(result[-1]["data"]["text/html"])
    assert "parameters" in "".join(plan[-1]["data"]["text/html"])
    text = "".join(said[-1]["text"])
    assert "300 predictions" in text
    assert "['downpour', 'one process']" in text
    (code,) = (tmp_path / "runs" / "notebooks").glob("spirals-*/task.py")
    assert "class Spirals(torch.utils.data.Dataset)" in code.read_text()
    assert (tmp_path / "runs" / "last" / "best.safetensors").is_file()
