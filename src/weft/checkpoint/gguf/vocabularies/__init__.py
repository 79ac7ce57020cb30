"""Tokenizers in a GGUF file: tokenizer.ggml.* <-> our `Tokenizer`, in both directions.

base            the vocabulary as the file has it, special tokens, begin and end
pieces          a tokenizer of ours taken apart, for writing
splits          where byte-level BPE cuts text, by name
byte_level, sentencepiece, unigram, wordpiece    one kind each: `read`, `write`, `matches`
table           the kinds by name; read_tokenizer and write_tokenizer
"""
