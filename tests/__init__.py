"""Corral's tests. Needs nothing but what `make test` brings."""
