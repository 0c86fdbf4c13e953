"""What is kept between runs: settings, sessions, spilled texts and the profiles of a user's own
vendors.
"""
