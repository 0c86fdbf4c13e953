"""The functions that a profile's compiled rules call while a child runs."""
