"""What pictures and pages share: axes; pages of HTML with their tables and bars."""
