"""Implements `shim run`, `demo`, `explain` and `sessions`, which run one turn, explain what a turn
would start, and manage sessions that can be resumed.
"""
