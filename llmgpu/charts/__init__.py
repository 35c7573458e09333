"""What pictures have in common: axes, and text as XML may hold it. No plotting library."""
