"""`shim install --into`: the drop-in in the place of a claude that another program keeps for
itself.
"""
