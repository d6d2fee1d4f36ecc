"""The free room of a fleet, node by node and as arrays, and how shapes stand with it: what all that places asks."""
