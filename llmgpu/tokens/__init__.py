"""Files of token ids: writing, reading, layouts and shards."""
