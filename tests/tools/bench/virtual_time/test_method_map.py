"""Which method for which network."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from cutset.tools.bench.virtual_time import method_map
from cutset.tools.bench.virtual_time.assumptions import Assumptions
from cutset.tools.bench.virtual_time.figure4 import CurveSetting
from cutset.tools.bench.virtual_time.method_map import MapRequest, MapRow, MethodMap, simulate_map, tabulate
from cutset.tools.bench.virtual_time.method_map_svg import render_method_map
from cutset.tools.task.load_task import TaskSpec

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.run
def test_slow_networks_are_for_methods_that_send_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    often = CurveSetting("often", "downpour", "adagrad", 0.5, adaptive=True)
    rarely = CurveSetting("rarely", "easgd:every=10", "adagrad", 1.5, adaptive=True)
    monkeypatch.setattr(method_map, "SETTINGS", (often, rarely))
    monkeypatch.setattr(method_map, "PACES", {"all alike": 1.0})
    monkeypatch.setattr(method_map, "NETWORKS", {"fast": 125e6, "slow": 1.25e6})
    request = MapRequest(TaskSpec("cutset.models:digits"), Assumptions(step_s=0.02))
    found = simulate_map(request, tmp_path, jobs=2, tell=lambda line: None)
    best = {place[1]: min(found.rows, key=lambda row: row.seconds[place] or 1e9).name for place in found.places}
    assert best == {"fast": "often", "slow": "rarely"}
    assert found.facts[-1] == "8 replicas with 67.3 KiB of parameters, 1 shard; one seed."


def test_the_best_of_each_network_has_a_frame() -> None:
    places = [(pace, network) for pace in method_map.PACES for network in method_map.NETWORKS]
    rows = [
        MapRow("a", "sync", {place: 1.0 + i for i, place in enumerate(places)}),
        MapRow("b", "easgd", dict.fromkeys(places, 2.5)),
        MapRow("c", "ssp", dict.fromkeys(places)),
    ]
    found = MethodMap("digits", 0.9, rows, ["What is real."])
    root = ElementTree.fromstring(render_method_map(found))
    framed = {
        (group.get("data-row") or "", group.findtext(f"{SVG}title"))
        for group in root.iter(f"{SVG}g")
        if any(part.get("class") == "mark" for part in group.iter(f"{SVG}rect")) and group.get("data-row")
    }
    assert [row for row, _ in sorted(framed)] == ["a", "a", "b", "b", "b", "b"]
    words = "".join(root.itertext())
    assert "What is real." in words
    assert "c, 10 Mb/s, all alike: never" in words
    assert tabulate(found).to_dict()["methods"][2]["1 Gb/s, all alike"] is None
