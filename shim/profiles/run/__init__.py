"""The functions that compiled rules call while a child runs."""
