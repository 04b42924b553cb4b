"""A real Slurm on this machine: its own munged, a controller, and nodes that are daemons side by side."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from free_ports import find_free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc")
_PATH = "/usr/sbin:/usr/bin:/usr/local/sbin:" + os.environ.get("PATH", "")
lacking = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
needs_slurm = pytest.mark.skipif(bool(lacking) or os.geteuid() != 0, reason=f"needs root and {', '.join(lacking)}")
START_S = 30.0

_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
SlurmdTimeout=30
"""


@contextmanager
def slurm_cluster(folder: Path, nodes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a Slurm of so many nodes, which the programs of Slurm find by the environment."""
    ports = find_free_ports(nodes + 1)
    for name in ("state", *(f"spool.n{number}" for number in range(1, nodes + 1))):
        (folder / name).mkdir()
    lines = [
        f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
        for number, port in enumerate(ports[1:], start=1)
    ]
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP")
    config = folder / "slurm.conf"
    text = _CONFIG.format(host=socket.gethostname(), controller=ports[0], folder=folder)
    config.write_text(text + "\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    folder.chmod(0o755)
    monkeypatch.setenv("PATH", _PATH)
    monkeypatch.setenv("SLURM_CONF", str(config))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    munge = [f"--socket={folder}/munge.socket", f"--key-file={key}", f"--pid-file={folder}/munge.pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed", "--force", "--foreground"]
    with ExitStack() as stack:
        stack.enter_context(_daemon(folder, "munged", *munge))
        _await(lambda: (folder / "munge.socket").exists())
        stack.enter_context(_daemon(folder, "slurmctld", "-D", "-f", str(config)))
        for number in range(1, nodes + 1):
            stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", f"n{number}", "-f", str(config)))
        _await(lambda: _idle_nodes() == nodes)
        yield


def _idle_nodes() -> int:
    listed = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], capture_output=True, text=True, check=False).stdout
    return sum(line.endswith(" idle") for line in listed.splitlines())


def _await(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def _daemon(folder: Path, name: str, *words: str) -> Iterator[None]:
    program = shutil.which(name, path=_PATH)
    assert program is not None
    with (folder / f"{name}.out").open("ab") as output:
        process = subprocess.Popen([program, *words], stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
