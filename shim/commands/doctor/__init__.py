"""Implements `shim doctor` and `shim vendors`, which show what works on this machine and what each
vendor supports.
"""
