"""`MeasuredStep`: a step as it was recorded, as plain data, which figures and pages read without loading torch."""

import msgspec

from ...partition.placement.placement_file import TimelineSpan

WAYS = ("forward", "backward")
WEIGHTS = "weights"  # gradients of parameters that backward of a segment left for later
COMPUTE = (*WAYS, WEIGHTS)
WAIT, OTHER = "wait", "other"


class MeasuredStep(msgspec.Struct, frozen=True):
    """The step of median duration among those that were recorded.

    Attributes:
        of: how many steps were recorded.
        step_s: from the start on the first machine to the end on the last one; fetching and pushing parameters come
            before and after.
        timeline: seconds from that start. Kinds are those of a prediction, "wait", and "other", a machine's own work
            around segments: packing and unpacking messages, drawing random numbers. A "send" lasts from when it was
            queued until the receiver took it, which may be later than it arrived.
    """

    step: int
    of: int
    step_s: float
    timeline: list[TimelineSpan]
