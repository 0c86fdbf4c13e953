"""Help: the commands in groups, and the topics of the manual."""
