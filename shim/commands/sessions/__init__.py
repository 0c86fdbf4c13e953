"""`shim bridge`, and what the commands about background sessions share."""
