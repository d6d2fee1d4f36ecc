"""Facts come in, the table moves the phase, effects go out. Each loop: wake, load, decide, commit guarded, act."""
