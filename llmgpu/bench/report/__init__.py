"""Showing a record: tables, a page with charts, a comparison with another record."""
