"""What a vendor is: its capabilities, its tools in Claude's words, its translator and the pump that
feeds it.
"""
