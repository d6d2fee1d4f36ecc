"""Every number in the README, each beside its floor, measured in the same run."""
