"""Names of engines: what each says, and that all others are refused with the forms there are."""

from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.config.engine_name import FORMS, check_ports, parse_engine


@pytest.mark.parametrize(
    ("name", "kind", "argument"),
    [
        ("ssh:a/b.toml", "ssh", "a/b.toml"),
        ("slurm", "slurm", ""),
        ("slurm:partition=short,exclusive", "slurm", "partition=short,exclusive"),
        ("ray:10.0.0.1:6379", "ray", "10.0.0.1:6379"),
        ("k8s:values.toml", "k8s", "values.toml"),
        ("env", "env", ""),
        ("join:run.key", "join", "run.key"),
    ],
)
def test_the_parts_of_a_name(name: str, kind: str, argument: str) -> None:
    assert (parse_engine(name).kind, parse_engine(name).argument) == (kind, argument)
    assert parse_engine(name).cluster == (Path(argument) if kind == "ssh" else None)


def test_options_of_salloc_are_words_of_their_own() -> None:
    assert parse_engine("slurm:partition=a b,exclusive,").options == {"partition": "a b", "exclusive": ""}


@pytest.mark.parametrize("name", ["", "ssh", "ssh:", "k8s", "join:", "telnet:x", "slurm:-x", "slurm:=1", "Slurm"])
def test_what_names_no_engine_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="E297") as caught:
        parse_engine(name)
    assert "salloc" in caught.value.facts or FORMS in caught.value.fix


@pytest.mark.parametrize("text", ["", "40000", "80-90", "50000-40000", "1024-70000", "a-b"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no range of ports"):
        check_ports("--ports", text)


def test_a_range_of_ports_is_taken() -> None:
    check_ports("--ports", "40000-40100")
