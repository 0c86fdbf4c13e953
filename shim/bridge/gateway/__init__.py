"""The gateway: an HTTP server for browsers and scripts.

It stores no session, so it can be killed and restarted without a loss.
"""
