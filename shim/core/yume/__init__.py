"""Yume's flat dialect: the output encoder, the command line, and the input lines."""
