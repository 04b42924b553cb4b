"""A step is tried before it is traced, at once or some time before."""

import torch
import torch.nn.functional as F
from torch import nn

from cutset.partition.capture.export import StepCapture
from cutset.partition.capture.tried_step import StepRequest


def test_a_capture_that_is_finished_again_is_the_same() -> None:
    x = torch.randn(4, 6)
    step = StepCapture(StepRequest(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), F.mse_loss, [x], [x]))
    at_once = step.finish()[0]
    step.prepare()
    assert [step.finish()[0].digest, step.finish()[0].digest] == [at_once.digest] * 2
