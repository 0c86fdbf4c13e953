"""The gateway: HTTP for browsers and scripts. It holds no session: kill it and start it, and
nothing is lost.
"""
