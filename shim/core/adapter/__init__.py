"""The base classes for vendors: the adapter, the tool mapping, the translator, and the stream that
feeds the translator.
"""
