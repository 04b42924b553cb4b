"""How machines join that nothing leads to: the door at the launcher, the pump to an agent, the key of a run."""
