"""Reading text: files, documents, and slices of them that can be worked on by themselves."""
