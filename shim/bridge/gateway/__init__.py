"""The gateway: an HTTP server that lets browsers and scripts use background sessions.

The gateway stores no session data, so it can be killed and restarted at any time.
"""
