"""What programs share that are asked and ask in lines of JSON: the requests that are open, and
forms for the person.
"""
