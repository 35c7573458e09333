"""Reading text: files, documents, and slices of documents that can be processed separately."""
