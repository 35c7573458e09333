"""The commands: their options and help. The code of a command is imported when the command runs."""
