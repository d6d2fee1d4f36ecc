"""Whose claim to run is how strong, and the smallest set of changes that gives the better claims room."""
