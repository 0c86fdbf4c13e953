"""Yume's flat dialect: its pen, its command line and its control lines."""
