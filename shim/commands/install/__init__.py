"""`shim install --into`: replaces the claude that another program bundles."""
