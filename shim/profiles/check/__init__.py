"""The checks of profiles and settings, and the location of each error."""
