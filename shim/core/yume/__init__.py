"""Yume's flat dialect: its encoder, its command line and its control lines."""
