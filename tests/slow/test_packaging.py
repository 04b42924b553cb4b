"""The wheel: everything it needs is in it, and it puts nothing but `cutset/` into site-packages."""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_PACKAGES = {"build", "dist", "docs", "examples", "runs", "tests"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def setuptools_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return table


def package_files() -> dict[str, Path]:
    """Name in the wheel -> file here, of all that the packages hold."""
    folders = {name.replace(".", "/"): ROOT / folder for name, folder in setuptools_table()["package-dir"].items()}
    return {
        f"{inside}/{path.relative_to(folder).as_posix()}": path
        for inside, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since setuptools builds inside the tree."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in setuptools_table()["package-dir"].values():
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; the dependencies come from the one that runs the tests."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    return home


def test_every_folder_with_code_is_a_package():
    table = setuptools_table()
    assert set(table["packages"]) == set(table["package-dir"])
    listed = {ROOT / folder for folder in table["package-dir"].values()}
    slice_state = {
        path.parent
        for top in ROOT.iterdir()
        if top.is_dir() and not top.name.startswith(".") and top.name not in NO_PACKAGES
        for path in top.rglob("*.py")
    }
    assert slice_state == listed


def test_the_wheel_holds_every_file_of_every_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert names == set(package_files())
    assert {"cutset/models/data/digits.csv.gz", "cutset/models/data/ATTRIBUTION.md"} <= names
    assert len(licences) == 1


def test_only_cutset_lands_in_site_packages(installed):
    (site,) = installed.glob("lib/python*/site-packages")
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"cutset", "dependencies.pth"}


def test_it_works_from_elsewhere(installed, tmp_path):
    code = (
        "import cutset, cutset.models, cutset.partition, cutset.ps, cutset.runtime, cutset.tools\n"
        "print(cutset.__file__)\n"
        "print(len(cutset.models.digits().data('train')))\n"
    )
    where, samples = run(installed / "bin" / "python", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(installed)
    assert samples == "1437"


def test_the_command_is_installed(installed, tmp_path):
    assert "Usage: cutset" in run(installed / "bin" / "cutset", "--help", cwd=tmp_path)
