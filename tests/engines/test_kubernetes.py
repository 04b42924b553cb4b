"""The engine k8s: its manifests are valid, and runs go through what `kubectl exec` leads to, here that of a fake."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import USAGE, Cutset
from command_line import cutset as cutset
from engine_runs import check_bits
from places import SUPPORT


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of values, and a kubectl on the path."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {SUPPORT / "fake_kubectl.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_CLUSTER", str(tmp_path))
    path = tmp_path / "values.toml"
    path.write_text(f'image = "lab/cutset:1"\npython = "{sys.executable}"\nlauncher = "127.0.0.1"\nname = "digits"\n')
    return path


def manifests(cutset: Cutset, values: Path) -> list[Any]:
    outcome = cutset("manifest", values, "--machines", "3")
    assert outcome.code == 0, outcome.err
    return [json.loads(text) for text in outcome.out.split("---\n")[1:]]


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_manifests_are_valid(cutset: Cutset, values: Path, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in manifests(cutset, values):
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = manifests(cutset, values)[1]
    wrong["spec"]["paralelism"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_pods_hold_no_secret_and_no_token(cutset: Cutset, values: Path) -> None:
    service, job = manifests(cutset, values)
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "env" not in pod["containers"][0]
    assert service["spec"]["clusterIP"] == "None"
    assert (job["spec"]["parallelism"], job["spec"]["completionMode"]) == (3, "Indexed")


def test_a_run_in_pods(tmp_path: Path, cutset: Cutset, values: Path) -> None:
    check_bits(cutset, tmp_path, f"k8s:{values}")
    assert (tmp_path / "deleted").exists()


@pytest.mark.parametrize(
    "text", ["", "image = 3", 'image = "a"\nname = "No Name"', 'image = "a"\nreplica = 3', "image"]
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, cutset: Cutset, text: str) -> None:
    path = tmp_path / "values.toml"
    path.write_text(text)
    outcome = cutset("manifest", path)
    assert outcome.code == USAGE
    assert "E297" in outcome.err
