"""`shim bridge`, and the code that commands about background sessions share."""
