"""The rules of a profile, compiled into a translator."""
