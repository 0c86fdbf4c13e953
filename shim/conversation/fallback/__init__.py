"""Fallback between vendors: if one vendor does not answer a message, the next vendor is tried."""
