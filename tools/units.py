"""Numbers with three digits and a unit - bytes, seconds, FLOPs, fractions - alike in every picture and table."""

OPEN_ENDED = 1 << 40  # steps, of a run on a stream of unknown length; more than any run has

NONE = "–"


def format_bytes(count: float | None) -> str:
    """Format bytes in binary units: 1536 -> "1.5 KiB"."""
    if count is None:
        return NONE
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{_format_digits(value)} {unit}"


def format_seconds(seconds: float | None) -> str:
    """Format seconds in units from microseconds to hours: 0.00123 -> "1.23 ms"."""
    if seconds is None:
        return NONE
    size = abs(seconds)
    if size >= 5400:
        return f"{_format_digits(seconds / 3600)} h"
    if size >= 120:
        return f"{_format_digits(seconds / 60)} min"
    if size >= 1 or size == 0:
        return f"{_format_digits(seconds)} s"
    if size >= 1e-3:
        return f"{_format_digits(seconds * 1e3)} ms"
    return f"{_format_digits(seconds * 1e6)} µs"


def format_count(count: float | None) -> str:
    """Format a count in decimal units: 1234567 -> "1.23 M"."""
    if count is None:
        return NONE
    value = float(count)
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(value) < 1000 or unit == " P":
            break
        value /= 1000
    return f"{_format_digits(value)}{unit}"


def format_number(count: int, noun: str) -> str:
    """Format a number of things: 1 -> "1 machine", 2 -> "2 machines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_processes(machines: int, replicas: int, shards: int) -> str:
    """Return "2 machines x 2 replicas, 1 shard"."""
    cut, many = format_number(machines, "machine"), format_number(replicas, "replica")
    return f"{cut} x {many}, {format_number(shards, 'shard')}"


def format_percent(fraction: float | None, *, digits: int = 0) -> str:
    """Format a fraction in percent: 0.256 -> "26 %"."""
    if fraction is None:
        return NONE
    small = not digits and 0 < fraction < 0.005
    return "<1 %" if small else f"{100 * fraction:.{digits}f} %"


def format_against_prediction(seconds: float, predicted_s: float) -> str:
    """Compare a measured time with its prediction: "1.5 times the predicted 30.1 ms"; "as predicted" within 5 %."""
    ratio = seconds / predicted_s
    if abs(ratio - 1) < 0.05:
        return f"as predicted ({format_seconds(predicted_s)})"
    return f"{_format_digits(ratio)} times the predicted {format_seconds(predicted_s)}"


def _format_digits(value: float) -> str:
    size = abs(value)
    text = f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def choose_ticks(top: float, *, count: int = 5) -> list[float]:
    """Return about `count` multiples of a round step (1, 2 or 5 times a power of ten) from 0 up to `top`."""
    if top <= 0:
        return [0.0]
    raw = top / count
    power = 10.0 ** _find_exponent(raw)
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    return [step * index for index in range(int(top / step * 1.000001) + 1)]


def _find_exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])
