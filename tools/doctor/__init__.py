"""`cutset doctor`: whether the machines of a cluster file are ready for a run, and what is wrong where they are not."""
