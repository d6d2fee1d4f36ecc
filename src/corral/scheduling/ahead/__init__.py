"""The room to come: who gives it back when, who waits in front for it, and what is left to others meanwhile."""
