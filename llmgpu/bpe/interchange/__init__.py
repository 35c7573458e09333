"""Vocabularies in other tools' files: tiktoken, Hugging Face tokenizers, GPT-2.

- Each format is a module, listed in `llmgpu.bpe.interchange.formats`.
- A vocabulary that was read gives the ids that the other tool gives; a file for which that is
  impossible is refused with the name of the component in the way. `note` is told of parts of a
  file that have no influence on the ids inside a text and are not kept.
- A file that was written gives, in the other tool, the ids that the vocabulary gives here. A
  vocabulary for which that is impossible is refused.
- Files are hostile: sizes are limited, and every error is a VocabularyError that starts with the
  file's name.
"""
