"""The engine k8s: pods that wait for an agent, which `kubectl exec` then starts in each of them."""

import json
import re
import secrets
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ...errors import UsageError
from ..hosts.remote_host import AGENT
from .agent_command import AgentCommand
from .open_hosts import Opened, Streams, check_enough, open_hosts
from .programs import run_program, tidy_up

ASK_S, READY_S, _AGAIN_S = 30.0, 300.0, 0.5
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?")


@dataclass(frozen=True)
class KubernetesValues:
    """What a file of values says. image: has cutset, under `python`.

    launcher: the address at which pods reach this machine, by default its own. cpu, memory: what each pod requests, and
    may use of memory. hours: after which pods end.
    """

    image: str
    name: str = "cutset"
    namespace: str = "default"
    python: str = "python"
    launcher: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    hours: float = 24.0
    labels: dict[str, str] = field(default_factory=dict)


def read_values(path: Path) -> KubernetesValues:
    """Read a TOML file of values. UsageError where it cannot be read, or says what means nothing here."""
    try:
        table = tomllib.loads(path.read_text())
        values = msgspec.convert(table, KubernetesValues)
        unknown = set(table) - set(KubernetesValues.__dataclass_fields__)
        if unknown:
            raise ValueError(f"there is no value {sorted(unknown)[0]!r}")
        for name in (values.name, values.namespace):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name in Kubernetes")
    except OSError as error:
        raise UsageError("E297", f"{path} cannot be read: {error.strerror}", fix="--on k8s:values.toml") from error
    except (ValueError, msgspec.ValidationError) as error:
        fix = 'it needs image = "..."; docs/guide/machines.md has all values'
        raise UsageError("E297", f"{path}: {error}", fix=fix) from error
    return values


def make_manifests(values: KubernetesValues, pods: int) -> list[dict[str, Any]]:
    """Return a headless service and an indexed job of pods that wait, each on another node where there is one."""
    labels = {"app.kubernetes.io/name": "cutset", "app.kubernetes.io/instance": values.name, **values.labels}
    selector = {"app.kubernetes.io/instance": values.name}
    about = {"name": values.name, "namespace": values.namespace, "labels": labels}
    container = {
        "name": "agent",
        "image": values.image,
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": values.cpu, "memory": values.memory}, "limits": {"memory": values.memory}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": values.name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    service = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimitPerIndex": 3,
        "activeDeadlineSeconds": round(values.hours * 3600),
        "ttlSecondsAfterFinished": 600,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": job},
    ]


def format_manifests(manifests: list[dict[str, Any]]) -> str:
    """Return manifests as kubectl reads them: JSON, which is YAML as well."""
    return "".join(f"---\n{json.dumps(manifest, indent=2)}\n" for manifest in manifests)


class KubernetesEngine:
    """Pods of a job that it creates, and deletes at the end; see `Engine`."""

    def __init__(self, name: str, values: KubernetesValues) -> None:
        self.name, self._values = name, values
        self.notices = list[str]()

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Start as many pods and an agent in each; see `Engine`."""
        values = replace(self._values, name=f"{self._values.name}-{secrets.token_hex(3)}")  # each run has its own
        manifests, launcher = format_manifests(make_manifests(values, wanted)), values.launcher or _own_address()
        try:
            self._ask("create", "-f", "-", given=manifests)
            pods = self._await_pods(values.name, wanted)
            check_enough(self.name, f"job {values.name}", pods, least, fix=f"see `kubectl describe job {values.name}`")
            with open_hosts(partial(self._find_streams, values.name), launcher=launcher) as opened:
                yield opened
        finally:
            delete = ["kubectl", f"--namespace={values.namespace}", "delete", "--ignore-not-found", "--wait=false"]
            self.notices += tidy_up(self.name, [*delete, "-f", "-"], timeout_s=ASK_S, given=manifests)

    def _find_streams(self, job: str) -> Streams:
        """Return what leads to the pods that run; one that stands in for another has a name of its own."""
        chosen = (f"--selector=job-name={job}", "--field-selector=status.phase=Running")
        pods = sorted(pod.rpartition("/")[2] for pod in self._ask("get", "pods", *chosen, "--output=name").split())
        return {pod: partial(AgentCommand, pod, self._exec_command(f"pod/{pod}")) for pod in pods}

    def _await_pods(self, job: str, wanted: int) -> list[str]:
        """Return the pods of a job once all are ready."""
        chosen, deadline = f"--selector=job-name={job}", time.monotonic() + READY_S
        while len(pods := sorted(self._ask("get", "pods", chosen, "--output=name").split())) < wanted:
            if time.monotonic() > deadline:
                return pods
            time.sleep(_AGAIN_S)  # `kubectl wait` fails as long as there are no pods
        self._ask("wait", "--for=condition=Ready", chosen, "pod", f"--timeout={READY_S:g}s", timeout_s=READY_S + 10)
        return pods

    def _exec_command(self, pod: str) -> list[str]:
        return [
            "kubectl",
            f"--namespace={self._values.namespace}",
            "exec",
            "-i",
            pod,
            "--",
            self._values.python,
            *AGENT,
        ]

    def _ask(self, *words: str, given: str = "", timeout_s: float = ASK_S) -> str:
        command = ["kubectl", f"--namespace={self._values.namespace}", *words]
        return run_program(self.name, command, timeout_s=timeout_s, given=given)

    def __repr__(self) -> str:
        return f"KubernetesEngine({self.name})"


def _own_address() -> str:
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = ""
    if not address or address.startswith("127."):
        facts = "this machine does not know its own address, at which pods are to reach it"
        raise UsageError("E297", facts, fix='launcher = "ADDRESS" in the file of values')
    return address
