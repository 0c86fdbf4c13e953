"""The drivers, which answer messages with one vendor: one child process per message, or one for all
messages.
"""
