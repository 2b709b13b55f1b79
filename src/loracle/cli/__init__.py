"""The command line: one file per command, one sink for all output."""
