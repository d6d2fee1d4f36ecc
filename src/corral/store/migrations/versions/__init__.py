"""One file per revision, in order. A revision that was released never changes."""
