"""The processes of a run as rows of a table, alike in the terminal and in the browser."""

from ..units import NONE, format_bytes, format_count, format_percent, format_seconds
from .run_view import SILENT_S, WAITS, Event, RoleView, RunView, describe_scores

COLUMNS = ("process", "has come to", "a second", "computes", "waits most for", "sends", "memory", "CPU", "remarks")


def list_rows(view: RunView) -> list[tuple[str, ...]]:
    """Return a row for each process, in the order of their names."""
    return [_make_row(name, role) for name, role in sorted(view.roles.items())]


def _make_row(name: str, role: RoleView) -> tuple[str, ...]:
    status, split = role.status, role.split()
    counted = "step" if "step" in status else "updates"
    reached = {"step": f"step {status.get('step')}", "updates": f"update {status.get('updates')}"}[counted]
    rate = role.rate(counted)
    waits = {} if split is None else {wait: split[wait] for wait in WAITS}
    longest = max(waits, key=lambda wait: waits[wait], default="")
    sent = role.link_rates()
    cpu = role.rate("cpu_s", "beat_s")
    return (
        name,
        reached if counted in status else NONE,
        NONE if rate is None else f"{rate:.3g}",
        NONE if split is None else format_percent(split["computes"]),
        f"{longest} {format_percent(waits[longest])}" if longest and waits[longest] >= 0.005 else NONE,
        f"{format_bytes(sum(sent.values()))}/s" if sent else NONE,
        format_bytes(status.get("rss")),
        format_percent(cpu),
        _describe(role),
    )


def _describe(role: RoleView) -> str:
    """Return what is remarkable of a process in a few words."""
    status, words = role.status, list[str]()
    if role.silent_s > SILENT_S:
        words.append(f"nothing new for {format_seconds(role.silent_s)}")
    if status.get("loss") is not None:
        words.append(f"loss {status['loss']:.4g}")
    if (stale := status.get("staleness")) is not None:
        words.append(f"staleness {stale['p50']} to {stale['p90']}, at most {stale['max']}")
    if status.get("late"):
        words.append(f"{format_count(status['late'])} pushes too late")
    if (status.get("unsaved_s") or 0) > 5:
        words.append(f"not on disk for {format_seconds(status['unsaved_s'])}")
    if status.get("unacknowledged", 0) > 1:
        words.append(f"{status['unacknowledged']} pushes unacknowledged")
    return "; ".join(words)


def describe_progress(view: RunView, *, is_running: bool = True) -> str:
    """Return in a line how far the run is and how fast it trains, and what is to come, where that is."""
    curve = view.current
    if curve is None or not curve.step:
        return ""
    step = curve.step
    words = [f"{step['run']}: {describe_step(step)}", f"{format_count(step['samples'])} samples"]
    words += [f"{format_count(step['samples_per_s'])} samples/s"] if step.get("samples_per_s") is not None else []
    words += [f"loss {step['loss']:.4g}"] if step.get("loss") is not None else []
    words += [describe_scores(curve.score)] if curve.score else []
    if not is_running or view.ended is not None:
        return ", ".join(words)
    if view.leases:
        words.append(f"{view.leases} {'batch' if view.leases == 1 else 'batches'} leased")
    left_s = round(curve.estimate_left_s() or 0.0)
    words += [f"about {format_seconds(left_s)} left"] if left_s else []
    return ", ".join(words)


def describe_step(step: Event) -> str:
    """Return which step was made, and of how many where that is known."""
    steps = step.get("steps")
    return f"step {step['step']}" + (f" of {steps} ({format_percent(step['step'] / steps)})" if steps else "")
