"""The command line: the same calls as the SDK, for people and shell scripts. Exit codes and formats are a promise."""
