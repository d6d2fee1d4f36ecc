"""REST over HTTP: what users, agents and probes may ask of a manager. Decides nothing: each change is an intent."""
