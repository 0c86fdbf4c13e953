"""Vendors that are described in TOML. A profile is loaded, checked and compiled, and its rules run
on the child's output.
"""
