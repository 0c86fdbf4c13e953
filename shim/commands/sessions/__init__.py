"""`shim bridge`, and what the doors of background sessions share."""
