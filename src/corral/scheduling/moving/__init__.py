"""Who should move where so that sessions that fit nowhere find room."""
