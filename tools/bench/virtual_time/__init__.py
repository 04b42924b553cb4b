"""Methods in virtual time: DistBelief's figures 4 and 5, and how near simulated runs are to real ones."""
