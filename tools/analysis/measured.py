"""`Measured`: a step of a run as a timeline of the form that predictions have, so that both can be drawn."""

import msgspec

from ...partition.placement.placement_file import Span as Interval

COMPUTE = ("forward", "backward")
WAIT, OTHER = "wait", "other"


class Measured(msgspec.Struct, frozen=True):
    """The step of median duration among those that were recorded, `of` in number.

    step_s: from the moment the first machine began it to the moment the last one ended it; fetching and pushing
    parameters come before and after. timeline: seconds from that beginning; kinds are those of a prediction, "wait",
    and "other", a machine's own work around segments: packing and unpacking messages, drawing random numbers. A "send"
    lasts from when it was queued until the receiver took it, which may be later than it arrived.
    """

    step: int
    of: int
    step_s: float
    timeline: list[Interval]
