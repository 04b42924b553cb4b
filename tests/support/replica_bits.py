"""Prints whether a replica of one machine has the bits of plain torch where OpenMP would use more threads."""

import sys

import torch
from cutting import assert_same, run_cut, run_plain, subject

from cutset.partition.dataflow.cut import one_machine_cut

if __name__ == "__main__":
    torch.set_num_threads(1)
    of = subject("recurrent", torch.float64)
    assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=0.0)
    sys.stdout.write("the same bits\n")
