"""The shared code for programs that exchange requests and responses in lines of JSON: the session
of a child, and the forms that a person fills in.
"""
