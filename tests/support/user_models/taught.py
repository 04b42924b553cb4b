"""A net beside a teacher, which is cut off by `detach`, and a layer that nothing reads."""

from halves import points
from torch import Tensor, nn

from cutset import Task


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher, self.unused = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + 0.1 * self.teacher(x).detach()


def taught() -> Task:
    return Task("taught", Taught, nn.functional.cross_entropy, data=points, batch=20)
