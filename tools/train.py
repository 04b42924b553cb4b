"""Runs training jobs: `run` starts the processes of a job and returns its result, `train` is `cutset.train`.

What is needed at the end only is imported at the end, so that training begins sooner.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from ..errors import UsageError
from ..partition.cluster.machines import Cluster
from ..ps.methods.sandblaster import Sandblaster
from ..runtime.hosts.host import LocalHost
from ..runtime.launcher.launcher import Route
from ..whole_file import write_whole
from .analysis.mispredictions import Mispredictions
from .analysis.recorded_steps import RecordedSpans, find_whole_steps, read_spans
from .config.option import takes_options_of
from .config.run_config import RunConfig
from .hosts.early_host import open_early_host
from .hosts.engine import open_run_hosts, serve_if_member
from .job.divergence import DivergenceRetry
from .job.job import Job
from .job.prepare import prepare, prepare_run
from .job.process_specs import worker_name
from .measured.learning import fold_in
from .measured.other_work import CoresUsed, OtherWork
from .measured.saved_probe import make_key, read_saved_probe, save_probe
from .probe.first_probe import find_machines
from .report.notebook import RunResult
from .run_folder import REPORT, RESULT, TRACE
from .run_listener import RunListener
from .strict_json import to_json
from .task.load_task import refuse_while_importing
from .task.plan_request import HERE
from .tracking.listeners import Listeners
from .tracking.metrics_file import MetricsFile
from .training.run import run_baseline, run_replicas, run_with_divergence_retry


@takes_options_of(RunConfig)
def train(config: RunConfig) -> RunResult:
    """Train a task and return the result; the run folder is as the command leaves it, result.json and report included.

    The task is named as on the command line, "file.py:factory", or given as that function, of a file or a notebook:
    the processes of the run import it, so what a script does itself stands under `if __name__ == "__main__"`. The other
    arguments are the options of `cutset train`. Method, optimizer and compress may be text ("downpour:fetch=4") or
    objects (`cutset.Downpour(fetch=4)`). Raises `cutset.CutsetError`.

    With on="env", in a process that torchrun has started with another rank than 0, the result is {}.
    """
    refuse_while_importing("cutset.train")
    if serve_if_member(config.on):
        return RunResult({})
    return train_and_save(config)


def train_and_save(config: RunConfig, listener: RunListener | None = None) -> RunResult:
    """Prepare a run, train, and leave the result and its page in the run folder."""
    with open_early_host(config) as here, prepare_on(here, config) as job:
        result = run(job, listener, here=here)
        save_result(job, result)
        return RunResult(result, job.placement)


def prepare_on(here: LocalHost | None, config: RunConfig, *, again: bool = False) -> AbstractContextManager[Job]:
    """Prepare a run whose roles will be on this machine, or on others where that is None; see `prepare_run`.

    Where this machine is measured for the plan, nothing else is at work on it. again: as of `find_machines`.
    """

    def find_when_quiet(*arguments: Any) -> Cluster | None:
        if here is not None:
            here.await_prepared()
        return find_machines(*arguments, again=again)

    return prepare_run(config, partial(prepare, find_machines=find_when_quiet))


def save_result(job: Job, result: dict[str, Any]) -> None:
    """Write a result and its page into the run folder. UsageError where that cannot be."""
    from .report.pages import render_run_page

    try:
        write_whole(job.out / RESULT, to_json(result, indent=1) + "\n")
        write_whole(job.out / REPORT, render_run_page(job.placement, result))
    except OSError as error:
        raise UsageError("E222", f"cannot write {job.out}: {error}", fix="--out FOLDER with enough space") from error


def run(
    job: Job,
    listener: RunListener | None = None,
    *,
    here: LocalHost | None = None,
    route: Route | None = None,
) -> dict[str, Any]:
    """Train in one process, if that is asked for, and by the method; return the result as plain data.

    listener: hears of it while it lasts; the sentences about restarts and what else happens are the "notices" of the
    result, too. here: this machine, where it is open already. route: how processes reach each other, see `Launcher`.
    """
    notices: list[str] = []
    with contextlib.ExitStack() as stack:
        listeners = [listener or RunListener()]
        if job.config.tensorboard:
            from .tracking.event_files import EventFiles

            listeners.append(stack.enter_context(EventFiles(job.out)))
        metrics = MetricsFile(job.out, on_notice=notices.append)
        counts = {"machines": job.machines, "replicas": job.replicas, "shards": job.shards}
        with metrics.recording(task=job.task_name, method=job.method.name, **counts):
            everyone = Listeners([*listeners, metrics])
            everyone.on_begin(job.out)
            return _run(job, everyone, notices, here, route)


def _run(
    job: Job, listener: RunListener, notices: list[str], here: LocalHost | None, route: Route | None
) -> dict[str, Any]:
    job = replace(job, training=msgspec.structs.replace(job.training, may_stop=listener.may_stop))

    def notify(sentence: str) -> None:
        notices.append(sentence)
        listener.on_notice(sentence)

    times = CoresUsed.read()
    with open_run_hosts(job, notify, here=here) as hosts:
        is_local = all(isinstance(host, LocalHost) for host in hosts.hosts)
        if isinstance(job.method, Sandblaster):
            from .sandblaster.run import run_sandblaster

            outcome = run_sandblaster(job, job.method, hosts, listener, notify, route)
        else:
            baseline = run_baseline(job, hosts, listener) if job.config.trains_alone else None
            job, outcome, retry = run_with_divergence_retry(
                job, lambda job: run_replicas(job, hosts, listener, notify, route), notify
            )
    others = times.find_other_work() if times is not None and is_local else None
    if isinstance(job.method, Sandblaster):
        from .analysis.sandblaster_result import summarize_sandblaster

        result = summarize_sandblaster(job, job.method, outcome)
    else:
        result = _summarize(job, baseline, outcome, retry, notify)
        if job.config.learn:
            notify(learn_from_run(job, result["measured"], others))
    if others is not None and others.is_worth_saying:
        result["notes"].append(f"While it trained, {others.describe()}: on an idle machine it is faster.")
    return result | {"notices": notices}


def _summarize(
    job: Job,
    baseline: dict[str, Any] | None,
    outcome: dict[str, Any],
    retry: DivergenceRetry | None,
    notify: Callable[[str], object],
) -> dict[str, Any]:
    """Return the result of a run by a parameter-server method, and write the trace of its recorded steps."""
    from .analysis.result import compare_runs

    steps = read_spans([outcome["workers"][worker_name(0, machine)] for machine in range(job.machines)])
    _write_trace(job, steps, notify)
    return compare_runs(job, baseline, outcome, steps, retry)


def learn_from_run(job: Job, measured: dict[str, Any] | None, others: OtherWork | None) -> str:
    """Keep what a run has shown of this machine, and say so. measured: as in the result.

    others: what ran meanwhile; None where nobody knows.
    """
    found = None if measured is None else measured["mispredicted"]
    request = job.config.plan_request
    if found is None or request.source != HERE:
        return "nothing is learnt of this run: no step of a cut model was recorded that was planned for this machine"
    saved, _ = read_saved_probe(make_key(job.machines * job.replicas))
    if saved is None:
        return "nothing is learnt of this run: nothing is kept of this machine, as cutset plan measures it"
    if others is not None and others.is_worth_saying:
        return f"nothing is learnt of this run: {others.describe()} meanwhile"
    wrong = msgspec.convert(found, Mispredictions)
    note = save_probe(fold_in(saved, wrong.ratios, wrong.link))
    return note or f"learnt of {len(wrong.classes)} classes of operators and {wrong.messages} messages, for later plans"


def _write_trace(job: Job, steps: RecordedSpans, on_notice: Callable[[str], object]) -> None:
    """Write the recorded steps for Perfetto, where the model was cut; remove the trace of an earlier run.

    What was trained is more than a picture of it: where it cannot be written, that is a notice.
    """
    from .analysis.chrome_trace import make_chrome_trace

    path = job.out / TRACE
    try:
        path.unlink(missing_ok=True)
        if job.placement is not None and find_whole_steps(steps):
            write_whole(path, msgspec.json.encode(make_chrome_trace(job.placement, steps, job.programs)).decode())
    except OSError as error:
        on_notice(f"the trace of some steps cannot be written to {path}: {error}")
