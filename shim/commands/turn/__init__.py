"""`shim run`, `demo`, `explain` and `sessions`: one turn for a person, what it would start, and
what can go on.
"""
