"""Recording runs as casts, finding and replaying them."""
