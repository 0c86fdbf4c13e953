"""The table of all keys that a profile may have, and warnings about keys that a later version may
remove.
"""
