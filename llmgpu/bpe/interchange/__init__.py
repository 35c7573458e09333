"""Vocabularies in other tools' files: tiktoken, Hugging Face tokenizers, GPT-2.

- Each format is a module, listed in `llmgpu.bpe.interchange.formats`.
- A vocabulary read from a file gives the ids of the other tool. If this is impossible, the file is
  refused, and the error names the component that llmgpu can't reproduce. Parts of a file that have
  no influence on the ids inside a text are dropped, and `note` reports them.
- When the other tool reads a written file, it gives the ids of llmgpu. If this is impossible, the
  vocabulary is refused.
- In these modules, "the library" is Hugging Face's tokenizers.
- Files may be malicious: sizes are limited, and every error is a VocabularyError that starts with
  the file's name.
"""
