"""What the programs share that are driven by requests and responses in lines of JSON: the session of
one child, and forms for the person.
"""
