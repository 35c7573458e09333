"""The commands: their options and help. What a command does is imported when it runs."""
