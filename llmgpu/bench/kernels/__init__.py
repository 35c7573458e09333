"""One operation at a time: what it takes, and how near that is to what an engine can do."""
