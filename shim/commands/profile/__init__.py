"""`shim vendor`: a profile of a user's own, drafted and checked."""
