"""`shim cast` and `shim replay`: list, summarize, verify and replay recordings, and create fixtures
from them.
"""
