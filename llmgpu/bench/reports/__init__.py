"""What becomes of a record: a page with charts, a comparison with another record."""
