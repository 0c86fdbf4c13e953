"""The base classes for vendors: the adapter, the mapping of tools, the translator, and the stream
that feeds the translator.
"""
