"""Vocabularies in other tools' files: tiktoken, Hugging Face tokenizers, GPT-2.

- Each format is a module with ``read(...) -> Vocabulary`` and ``write(vocabulary, path)``.
- What is read gives the ids that the other tool gives, or is refused with the name of what is in
  the way. What has no influence on ids inside a text, and is not kept, is told to `note`.
- What is written gives, in the other tool, the ids that the vocabulary gives here, or is refused.
- Files are hostile until read: sizes are limited, and an error is a VocabularyError that begins
  with the file's name.
"""
