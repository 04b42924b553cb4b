"""From a torch module to a `Graph`: torch.export traces it, and every operator gets axes, loops and FLOPs.

`export` traces; `lowering` enters canonical operators into a `Draft`; `axis_inference` equates axes by the sharding
rules. A module that cannot be traced raises `Untraceable`, unless it is a leaf module.
"""
