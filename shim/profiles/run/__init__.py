"""What compiled rules call while a child runs."""
