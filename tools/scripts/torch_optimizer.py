"""From a torch optimizer to one of the shards, and `SharedOptimizer`, which takes the place of the user's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import BadInput
from ...ps.optimizers.rates import PlainOptimizer
from ...ps.optimizers.standard import SGD, Adam, AdamW, RMSprop, TorchAdagrad

TOLERANCE = 1e-6  # by which the factors of groups may differ, relatively
Group = Mapping[str, Any]  # of parameters, as torch.optim has it

# By the class in torch: the one here, and the names of their options where they are not the same.
_KNOWN: dict[type[torch.optim.Optimizer], tuple[type[PlainOptimizer], dict[str, str]]] = {
    torch.optim.SGD: (SGD, {}),
    torch.optim.Adam: (Adam, {}),
    torch.optim.AdamW: (AdamW, {}),
    torch.optim.RMSprop: (RMSprop, {}),
    torch.optim.Adagrad: (TorchAdagrad, {"initial_accumulator_value": "initial"}),
}
# How torch computes, which changes no value; and where a group keeps what belongs to it.
_IGNORED = {"params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable", "betas", "param_names"}
_NEUTRAL = {"dampening": 0, "maximize": False, "amsgrad": False, "decoupled_weight_decay": False}


def translate_optimizer(optimizer: torch.optim.Optimizer) -> list[PlainOptimizer]:
    """Return the optimizers of its groups of parameters, one each. BadInput E360 where the shards have none such."""
    kind = type(optimizer)
    if kind not in _KNOWN:
        known = ", ".join(sorted(one.__name__ for one in _KNOWN))
        facts = f"the shards have no optimizer like torch.optim's {kind.__name__}"
        raise BadInput("E360", facts, fix=f"give run.prepare one of {known}")
    return [_translate_group(kind, group) for group in optimizer.param_groups]


def _translate_group(kind: type[torch.optim.Optimizer], group: Group) -> PlainOptimizer:
    own, names = _KNOWN[kind]
    options: dict[str, Any] = {"lr": base_rate(group)}
    if "betas" in group:
        options["beta1"], options["beta2"] = map(float, group["betas"])
    for name, value in group.items():
        if name in _IGNORED:
            continue
        translated = names.get(name, name)
        if translated in own.__struct_fields__:
            options[translated] = value.item() if isinstance(value, torch.Tensor) else value
        elif name in _NEUTRAL and not _is_neutral(kind, name, value):
            facts = f"{kind.__name__} with {name}={value}, which no optimizer of the shards has"
            raise BadInput("E360", facts, fix=f"{kind.__name__}(..., {name}={_NEUTRAL[name]})")
    return own(**options)


def _is_neutral(kind: type[torch.optim.Optimizer], name: str, value: Any) -> bool:
    """Return whether an option has no effect; AdamW is what decouples the decay of weights."""
    if name == "decoupled_weight_decay":
        return bool(value) == issubclass(kind, torch.optim.AdamW)
    return bool(value == _NEUTRAL[name])


def base_rate(group: Group) -> float:
    """Return the learning rate of a group that schedulers multiply. BadInput E360 where that is 0."""
    rate = float(group.get("initial_lr", group["lr"]))
    if not rate > 0:
        facts = f"the learning rate of a group of parameters is {rate:g} when run.prepare is called"
        raise BadInput("E360", facts, fix="set the rate above 0 there, and lower it in the loop or by a scheduler")
    return rate


class SharedOptimizer(torch.optim.Optimizer):
    """Hands gradients to the shards at `step`, which make the update; has the parameter groups of the user's optimizer.

    So schedulers of either set the rates of both. Other options stay as they were. push: called with the factors of the
    learning rate at present, see `factors`. goes_on: whether steps were made before, by another process.
    """

    def __init__(
        self, own: torch.optim.Optimizer, push: Callable[[Sequence[float]], None], *, goes_on: bool = False
    ) -> None:
        parameters = [parameter for group in own.param_groups for parameter in group["params"]]
        super().__init__(parameters, own.defaults)
        self.param_groups = own.param_groups
        self._own, self._push = own, push
        self._frozen = [one for one in parameters if not one.requires_grad]
        self._bases = [base_rate(group) for group in own.param_groups]
        self._options = self._list_options()
        if goes_on:
            self._note_step()

    @property
    def factors(self) -> tuple[float, ...]:
        """By what the learning rate of each group is multiplied at present; one number where that is the same for all.

        BadInput E361 where a rate is no finite number of at least 0.
        """
        rates = [float(group["lr"]) for group in self.param_groups]
        wrong = next((rate for rate in rates if not 0 <= rate < math.inf), None)
        if wrong is not None:
            facts = f"the learning rate of a group of parameters is {wrong:g} when optimizer.step is called"
            raise BadInput("E361", facts, fix="set rates of 0 or more")
        factors = tuple(rate / base for rate, base in zip(rates, self._bases, strict=True))
        return factors if max(factors) - min(factors) > TOLERANCE * max(factors) else factors[-1:]

    def _list_options(self) -> list[dict[str, Any]]:
        """Return what the shards know of each group besides its rate."""
        names = self.defaults.keys() - _IGNORED | {"betas"}
        return [{name: group[name] for name in sorted(names & group.keys())} for group in self.param_groups]

    def _demand_same_options(self) -> None:
        """Raise BadInput E361 where an option was changed that the shards would not hear of."""
        for before, now in zip(self._options, self._list_options(), strict=True):
            changed = next((name for name in before if before[name] != now[name]), None)
            if changed is not None:
                facts = f"{changed} of a group of parameters was {before[changed]} and is {now[changed]}"
                fix = "change the learning rate alone: OneCycleLR(..., cycle_momentum=False)"
                raise BadInput("E361", f"{facts}; the shards keep the first", fix=fix)

    def _demand_same_parameters(self) -> None:
        """Raise BadInput E361 where a parameter shall be trained that the shards do not have."""
        number = next((number for number, one in enumerate(self._frozen) if one.grad is not None), None)
        if number is not None:
            shape = list(self._frozen[number].shape)
            facts = f"a parameter of shape {shape} has a gradient that needed none when run.prepare was called"
            fix = "let it need one there, and set its .grad to None as long as it shall not change"
            raise BadInput("E361", f"{facts}; the shards do not train it", fix=fix)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch's constructor does. BadInput E361 once the run is prepared: the shards lack it."""
        if hasattr(self, "_own"):
            facts = "add_param_group after run.prepare, with parameters that the shards do not have"
            raise BadInput("E361", facts, fix="give the optimizer all of its groups before")
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, and go on with the parameters that the method wants next; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._demand_same_options()
        self._demand_same_parameters()
        self._note_step()
        self._push(self.factors)
        return loss

    def _note_step(self) -> None:
        """Have schedulers know of a step; else they warn that they are called before the optimizer."""
        vars(self._own)["_opt_called"] = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set rates and other options. BadInput E361 where it has more: the rest is on the shards."""
        if state_dict.get("state"):
            facts = "load_state_dict of an optimizer whose state is on the shards"
            raise BadInput("E361", facts, fix="cutset launch --resume RUN, or load it before run.prepare")
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
