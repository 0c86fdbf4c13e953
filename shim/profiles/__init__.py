"""Vendors that are defined by a TOML profile. A profile is loaded, checked and compiled to rules,
and the rules translate the child's output.
"""
