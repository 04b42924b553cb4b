"""What is known of a run as metrics for Prometheus, at a port of this machine: `cutset watch --metrics-port`."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import UsageError
from .run_follower import RunFollower
from .run_view import RunView

LOOPBACK = "127.0.0.1"
UPDATE_S = 1.0

# name -> what it is, in words; of a process by the name that it has in its status
_OF_RUN = {
    "samples": ("samples", "Samples that all replicas have trained on."),
    "step": ("step", "The last step."),
    "loss": ("loss", "The loss of a batch."),
    "samples_per_second": ("samples_per_s", "Samples a second, of the last second."),
}
_OF_SCORES = {"test_accuracy": "Test accuracy, 0 to 1.", "test_loss": "Test loss."}
_OF_ROLE = {
    "role_step": ("step", "The last step of a worker."),
    "role_updates": ("updates", "Updates of a shard."),
    "role_unacknowledged_pushes": ("unacknowledged", "Pushes of a worker that no shard has acknowledged."),
    "role_unsaved_seconds": ("unsaved_s", "For how long a shard has had something that is not on disk."),
    "role_cpu_seconds": ("cpu_s", "CPU time of all threads of a process."),
    "role_resident_bytes": ("rss", "Memory of a process."),
}


def list_metrics(view: RunView, *, is_running: bool) -> Iterator[tuple[str, str, Mapping[str, str], float]]:
    """Yield each metric as its name, what it is, its labels and its value."""
    yield "running", "Whether a process of this machine leads the run.", {}, float(is_running)
    for run, curve in view.curves.items():
        for name, (field, words) in _OF_RUN.items():
            if curve.step.get(field) is not None:
                yield name, words, {"run": run}, curve.step[field]
        for name, words in _OF_SCORES.items():
            if curve.score.get(name) is not None:
                yield name, words, {"run": run}, curve.score[name]
    for role, seen in sorted(view.roles.items()):
        for name, (field, words) in _OF_ROLE.items():
            if seen.status.get(field) is not None:
                yield name, words, {"role": role}, seen.status[field]
        for what, seconds in (seen.status.get("waited") or {}).items():
            yield "role_waited_seconds", "For how long a worker has waited.", {"role": role, "for": what}, seconds
        for quantile, tau in (seen.status.get("staleness") or {}).items():
            yield "role_staleness", "Of pushes to a shard.", {"role": role, "quantile": quantile}, tau
        for peer, count in (seen.status.get("links") or {}).items():
            yield "link_bytes", "Bytes of tensors sent.", {"source": role, "target": peer}, count


class RunCollector:
    """Gives prometheus_client the metrics of a run when they are asked for."""

    def __init__(self, follower: RunFollower) -> None:
        self._follower, self._lock = follower, threading.Lock()

    def update(self) -> None:
        """Take into account what was written since the last time."""
        with self._lock:
            self._follower.update()

    def collect(self) -> Iterator[Any]:
        """Yield a family for each name."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            found = list(list_metrics(self._follower.view, is_running=self._follower.is_running))
        families: dict[str, Any] = {}
        for name, words, labels, value in found:
            if name not in families:
                families[name] = GaugeMetricFamily(f"cutset_{name}", words, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


def serve_metrics(
    follower: RunFollower,
    port: int,
    *,
    tell: Callable[[str], object],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Serve the metrics of a run, which follows it, until the caller is interrupted. tell: gets the address.

    UsageError where prometheus_client is not installed (E294), or the port cannot be used (E280).
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        facts = "--metrics-port needs prometheus_client, which is not installed"
        raise UsageError("E294", facts, fix="pip install prometheus_client") from error
    registry, collector = CollectorRegistry(auto_describe=False), RunCollector(follower)
    collector.update()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        facts = f"port {port} of {LOOPBACK} cannot be used: {error.strerror}"
        raise UsageError("E280", facts, fix="another --metrics-port") from error
    try:
        tell(f"metrics at http://{LOOPBACK}:{server.server_port}/metrics; Ctrl-C ends this, not the run")
        while True:
            wait(UPDATE_S)
            collector.update()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
