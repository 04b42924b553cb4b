"""`cutset bench`: the group of the benchmarks."""

import click

from .cluster import cluster_command, step_command
from .data import data_command
from .figure3 import figure3_command
from .figure4 import figure4_command
from .figure5 import figure5_command
from .methods import defaults_command, methods_bench_command
from .plan import plan_bench_command
from .processes import memory_command, start_command
from .stragglers import stragglers_command
from .summary import all_command, check_command
from .transport import channel_command, optimizers_command, ps_command
from .virtual_runs import against_real_command, method_map_command, simulate_command


@click.group()
def bench() -> None:
    """Run benchmarks."""


for _command in (
    against_real_command,
    all_command,
    channel_command,
    check_command,
    cluster_command,
    data_command,
    defaults_command,
    figure3_command,
    figure4_command,
    figure5_command,
    memory_command,
    method_map_command,
    methods_bench_command,
    optimizers_command,
    plan_bench_command,
    ps_command,
    simulate_command,
    start_command,
    step_command,
    stragglers_command,
):
    bench.add_command(_command)
