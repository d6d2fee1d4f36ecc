"""Corral runs sessions on machines with GPUs, each attempt at most once, and can prove it."""

__version__ = "0.1.0.dev0"
