"""Files of ids."""
