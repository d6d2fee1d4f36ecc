"""Public tools for testing code that uses Corral or is part of it.

The seeded simulation is built from the inside out: `simloop` (time, order, kill, pause) carries `process` (one
incarnation of an operating-system process); `faults` decides what goes wrong; `network`, `disk` and `trees` are the
world those processes touch. Nothing here is imported by production code.
"""
