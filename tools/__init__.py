"""What builds and checks Corral; never part of the package."""
