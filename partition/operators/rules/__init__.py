"""The sharding rules of ATen's operators, one module for each family of operators.

Importing a module enters its rules into the table; the registry imports all of them. An operator without a rule is
run on made-up operands (partition/discovery), or opaque: it is never cut, which is always correct.
"""
