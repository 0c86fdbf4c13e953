"""A child and all below it: found, probed, started, fed, drained and ended for certain."""
