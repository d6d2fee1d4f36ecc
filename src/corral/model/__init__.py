"""The nouns of Corral and the rules between them, as plain data.

Nothing in this package does I/O, reads a clock or knows a database: standard library only.
"""
