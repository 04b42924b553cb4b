"""`cutset scale` leaves a request for a run that can fulfil it, and says why where none can."""

from pathlib import Path

from command_line import USAGE, Cutset, refused

from cutset.tools.leases.scale_requests import ScaleLimits, ScaleRequests


def test_a_run_is_asked(cutset: Cutset, tmp_path: Path) -> None:
    with ScaleRequests(tmp_path, on_notice=print, clock=lambda: 0.0) as run:
        run.publish_limits(ScaleLimits("downpour", 2, 8))
        outcome = cutset("scale", tmp_path, "--replicas", 3)
        assert (outcome.code, outcome.err) == (0, "")
        assert "3 replicas instead of 2" in outcome.out
        assert run.take_request() == 3


def test_what_cannot_be_is_refused_by_name(cutset: Cutset, tmp_path: Path) -> None:
    refused(cutset("scale", tmp_path / "no", "--replicas", 2), USAGE, "E276", "there is no such folder")
    refused(cutset("scale", tmp_path, "--replicas", 2), USAGE, "E276", "it has ended, or not started")
    with ScaleRequests(tmp_path, on_notice=print) as run:
        run.publish_limits(ScaleLimits("sync", 2, 0))
        refused(cutset("scale", tmp_path, "--replicas", 3), USAGE, "E273", "sync", "--method downpour")
        run.publish_limits(ScaleLimits("downpour", 2, 8))
        refused(cutset("scale", tmp_path, "--replicas", 9), USAGE, "E274", "1 to 8", "--replicas 8")
