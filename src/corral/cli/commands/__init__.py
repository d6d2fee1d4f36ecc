"""The commands, grouped by what they are about. Each module only adds to the one application."""
