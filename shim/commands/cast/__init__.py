"""`shim cast` and `shim replay`: list, add up, verify and replay recordings, and turn them into
fixtures.
"""
