"""`shim run`, `demo`, `explain` and `sessions`: one turn for a person, what it would start, and the
sessions that can be resumed.
"""
