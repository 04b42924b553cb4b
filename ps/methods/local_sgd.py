"""Local SGD: in each round the replicas take steps of their own; then the shards take a step with their mean progress.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. The classes differ in the shards' step.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from ..optimizers.registry import AnyOptimizer
from ..optimizers.standard import SGD
from ..server.serving import ServingConfig
from .method import Method
from .training_loop import TrainingLoop


class LocalSGD(Method, frozen=True):
    """The rounds, which all subclasses have.

    every: steps of a round. The user's optimizer takes them, with a state that each replica keeps to itself. overlap:
    begin the next round while the shards take their step, which then arrives a round later, beneath what was done
    meanwhile (Kale et al., "Eager Updates for Overlapped Communication and Computation in DiLoCo", 2025).
    """

    lock_step: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = True
    every: int = 20
    overlap: bool = False

    def __post_init__(self) -> None:
        self.demand_count("every", 1)

    def make_outer_optimizer(self) -> AnyOptimizer:
        """Return the optimizer of the shards' step; its gradient is the mean of what rounds subtracted from values."""
        raise NotImplementedError

    def configure_shards(self, optimizer: AnyOptimizer, replicas: int) -> ServingConfig:
        """Have the shards take one step for the pushes of all replicas."""
        return ServingConfig(self.make_outer_optimizer(), replicas, aggregate=replicas)

    @property
    def push_period(self) -> int:
        """Steps of a round."""
        return self.every

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return one update for each round."""
        return steps // self.every

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if the optimizer compensates the delay of pushes."""
        self.demand_undelayed(optimizer)

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Run algorithm 1 of DiLoCo, of which averaging is a special case.

        A replica that was started again begins a round with the shards' values and the optimizer state that it saved.
        """
        client, optimizer = loop.client, loop.optimizer
        values, gradient = loop.worker.values, loop.worker.gradients
        # "for worker i: θ_i(t) ← θ(t-1)"
        client.fetch()
        client.wait()
        base = values.clone()  # θ(t-1); values - base is what this round has done so far
        state = optimizer.init_state(values)
        taken = torch.zeros((), dtype=torch.int64)  # steps that made this state
        loop.keep({**state, "taken": taken})
        # "for inner step h = 1 ... H: x ~ D_i; L ← f(x, θ_i(t))"
        for step in loop.steps():
            gradient.zero_()
            yield step
            if loop.has_ended:
                self._end_training(loop, base, step)
                break
            # "θ_i(t) ← InnerOpt(θ_i(t), ∇L)"
            taken += 1
            optimizer.apply(values, gradient, state, loop.make_update(int(taken), step))
            if (step + 1) % self.every == 0 or loop.is_last:
                self._end_round(loop, base, step)
            loop.finish_step(step)
        client.leave()

    def _end_training(self, loop: TrainingLoop[Any], base: torch.Tensor, step: int) -> None:
        """End the round before its time, as no step follows; nobody knew that."""
        if step % self.every:
            loop.is_last = True
            self._end_round(loop, base, step - 1)
        elif loop.client.is_fetching:
            loop.client.wait()

    def _end_round(self, loop: TrainingLoop[Any], base: torch.Tensor, step: int) -> None:
        """Push what the round did, which lasted to `step`, and begin the next. Writes over the gradients."""
        client, values, scratch = loop.client, loop.worker.values, loop.worker.gradients
        if client.is_fetching:  # with overlap: the shards' step after the round before
            progress = torch.sub(values, base, out=scratch)
            client.wait()
            base.copy_(values)
            values.add_(progress)
        # The shards take the mean: "Δ(t) ← 1/k Σ_i (θ(t-1) - θ_i(t))"
        delta = torch.sub(base, values, out=scratch)
        base.copy_(values)
        # The shards' version is the number of the round: all replicas push on it, so nobody is further ahead.
        number = client.version
        # "θ(t) ← OuterOpt(θ(t-1), Δ(t))"
        if self.overlap and not loop.is_last:
            client.push(delta, step, base=number)
            client.fetch(min_version=number + 1)
            return
        client.exchange(delta, step, base=number, min_version=number + 1)
        client.wait()
        base.copy_(values)


class Averaging(LocalSGD, frozen=True, tag="averaging"):
    """Every N steps all replicas continue from their mean (McDonald et al., 2010).

    When: the network is slow; with replicas of about one speed, as they wait for each other.

    McDonald, Hall and Mann, "Distributed Training Strategies for the Structured Perceptron", NAACL 2010: iterative
    parameter mixing, "w = Σ_i μ_i w_i" with equal μ. With every=1 and plain SGD it equals synchronous training.
    """

    def make_outer_optimizer(self) -> AnyOptimizer:
        """Return plain SGD of rate 1: base - mean(base - values) = mean(values)."""
        return SGD(1.0)


class DiLoCo(LocalSGD, frozen=True, tag="diloco"):
    """Every N steps the mean progress of all replicas is a gradient for Nesterov momentum (Douillard et al., 2023).

    When: the network is very slow: rounds may be of hundreds of steps.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, algorithm 1; its
    inner optimizer is AdamW. every: H of the paper, 500 there. outer_lr, momentum: of the outer step, which is plain
    SGD with momentum=0. The paper's momentum is 0.9, for hundreds of long rounds; with rounds of some 20 steps 0.7 is
    better, as in Wang et al., "SlowMo", ICLR 2020.
    """

    outer_lr: float = 0.7
    momentum: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_number("outer_lr", "above 0 and finite", lambda x: 0 < x < float("inf"), proper=0.7)
        self.demand_number("momentum", "at least 0 and below 1", lambda x: 0 <= x < 1, proper=0.9)

    def make_outer_optimizer(self) -> AnyOptimizer:
        """Return the paper's OuterOpt."""
        return SGD(self.outer_lr, momentum=self.momentum, nesterov=self.momentum > 0)
