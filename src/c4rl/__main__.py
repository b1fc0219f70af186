"""`python -m c4rl` is the command line."""

from c4rl.cli.main import command_line

command_line()
