"""`shim run`, `shim demo` and `shim explain`: one turn for a person, and what a turn would start."""
