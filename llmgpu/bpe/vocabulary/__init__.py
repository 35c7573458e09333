"""What ids stand for: the vocabulary, its file and its trie."""
