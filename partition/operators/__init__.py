"""The operator table: how each ATen operator may be cut, and how one box of it is run.

`rules` holds the sharding rules by family, `sharding` what a rule is made of. The `registry` finds the rule of an
operator, the `kernel` runs a box of one, and a `leaf_module` is a module of the user's as a single operator.
"""
