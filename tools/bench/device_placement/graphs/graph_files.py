"""Finds graphs of others on disk, and reads each by the format that its name or its first characters show."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .....errors import BadInput
from .hypergraph import Hypergraph
from .layer_graph import LayerGraph
from .read_dnn_partitioning import read_workload
from .read_metis import read_hmetis, read_metis
from .read_pipedream import read_profile

WORKLOAD, PROFILE, METIS, HMETIS = "dnn-partitioning", "pipedream", "metis", "hmetis"
ENDINGS = {".json": WORKLOAD, "graph.txt": PROFILE, ".graph": METIS, ".hgr": HMETIS}
BANDWIDTH = 1.25e9  # bytes/s: 10 Gbit/s Ethernet, for which PipeDream's results are
_FORMATS = "dnn-partitioning (*.json), PipeDream (*graph.txt), METIS (*.graph) and hMETIS (*.hgr)"


@dataclass(frozen=True)
class GraphFile:
    """A graph and where it is from. Layers of a profile are in seconds, at BANDWIDTH."""

    path: Path
    format: str
    graph: LayerGraph | Hypergraph


def read_graph_files(paths: Iterable[Path]) -> list[GraphFile]:
    """Read all graphs in these files and folders. Raises BadInput (E370 to E376), naming the file, for a broken one."""
    return [file for path in paths for file in _read_folder(path)]


def _read_folder(path: Path) -> Iterator[GraphFile]:
    if not path.is_dir():
        yield _parse(path, _read_text(path))
        return
    inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(tuple(ENDINGS)))
    texts = [(file, _read_text(file)) for file in inside]
    graphs = [(file, text) for file, text in texts if not _is_split(text)]
    if not graphs:
        raise BadInput("E370", f"no graph in {path}", fix=f"name a folder with graphs of {_FORMATS}")
    for file, text in graphs:
        yield _parse(file, text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput("E370", f"cannot read {path}: {error.strerror}", fix="name a file or a folder") from None
    except UnicodeDecodeError as error:
        raise BadInput("E370", f"{path} is no text: {error.reason}", fix="fetch the file again, unpacked") from None


def _is_split(text: str) -> bool:
    """Whether this is a solution, as the splits of experts that lie beside the benchmark's graphs."""
    return '"fpgas"' in text and '"edges"' not in text


def _parse(path: Path, text: str) -> GraphFile:
    name = str(path)
    kind = _detect_format(path, text)
    if kind == WORKLOAD:
        return GraphFile(path, kind, read_workload(text, name))
    if kind == PROFILE:
        return GraphFile(path, kind, read_profile(text, name, accelerators=1, bandwidth=BANDWIDTH))
    return GraphFile(path, kind, read_metis(text, name) if kind == METIS else read_hmetis(text, name))


def _detect_format(path: Path, text: str) -> str:
    named = next((kind for ending, kind in ENDINGS.items() if path.name.endswith(ending)), None)
    if named is not None:
        return named
    if text.lstrip().startswith("{"):
        return WORKLOAD
    if " -- " in text:
        return PROFILE
    raise BadInput("E370", f"{path} is of no format known here", fix=f"rename it: {_FORMATS}")
