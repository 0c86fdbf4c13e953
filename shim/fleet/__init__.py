"""The fleet: the sessions of many machines in one list, over a NATS server."""
