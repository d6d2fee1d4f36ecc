"""What a manager keeps between its passes, so that each looks only at what changed."""
