"""Implements `shim cast` and `shim replay`, which list, summarize, verify and replay recordings and
extract fixtures from them.
"""
