"""Casts, the recording format: writing, reading, checking and cleaning records; replaying one side.
Pure.
"""
