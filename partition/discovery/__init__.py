"""Sharding rules found by running: what an operator without a written rule may be cut along, tried on made-up operands.

`operator_call` is one call as data, `made_up_operands` its operands, `smaller_shapes` makes it small. `dependence`
proposes labels, `verification` tries them on parts, and `search` puts both together. `found_signature` is the result as
a sharding rule would give it.
"""
