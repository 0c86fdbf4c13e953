"""`shim doctor` and `shim vendors`: what works on this machine, and what each vendor can do."""
