"""The machines to plan for and what work costs on them: `Cluster`, `Machine`, `NetworkLink`, `Rate`; `CostModel`.

`cluster.toml` states a cluster as a file, in quantities with units; `cutset probe` measures one.
"""
