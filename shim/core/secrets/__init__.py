"""Finds and removes secrets. This package has the table of secret patterns and the code that
applies it.
"""
