"""`shim cast` and `shim replay`: recordings listed, added up, checked and turned into fixtures."""
