"""Why a session does not start now, what would start it, and when it may: the rules of the pass, asked to the end."""
