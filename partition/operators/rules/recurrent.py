"""Sharding rules of the elementwise part of a time step of an LSTM or a GRU, whose hidden units are independent."""

from .. import recurrent_cells
from ..sharding.cost_class import FUNCTION
from ..sharding.sharding_rule import sharding_rule
from ..sharding.signature import Labels, Signature, Site

FUNCTIONS = {"lstm_cell": 5.0, "lstm_hidden": 3.0, "gru_hidden": 5.0}  # evaluations for each hidden unit


@sharding_rule(
    f"cutset.{recurrent_cells.LSTM_CELL}",
    f"cutset.{recurrent_cells.LSTM_HIDDEN}",
    f"cutset.{recurrent_cells.GRU_HIDDEN}",
    cost=FUNCTION,
)
def recurrent_cell(site: Site) -> Signature | None:
    """y[b, h] = f(inputs[b, :, h], hidden[b, :, h], state[b, h])"""
    gates: Labels = ["b", None, "h"]
    last = "state" if "state" in site.arguments else "cell"
    work = FUNCTIONS[site.target.split(".")[1]]
    return Signature({"inputs": gates, "hidden": gates, last: ["b", "h"]}, ["b", "h"], work=work)
