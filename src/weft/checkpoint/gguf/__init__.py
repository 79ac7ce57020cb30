"""GGUF files, llama.cpp's format: one file with settings, tokenizer and (quantised) weights.

load         open_gguf: settings, weights and tokenizer in Hugging Face's words
save         write_gguf: the way back
header       the header alone, read with care; cursor and types are its parts
tensors      weights as float32, or in few bits; dequantise and few_bits take blocks apart
source       weights under Hugging Face's names
dialect/     architectures, one file each: metadata <-> config.json, names <-> names
vocabulary/  tokenizers, one file a kind
ends         which tokens begin and end a text
plan         what a file to be written will hold
library      the `gguf` library, imported only where it is needed
"""
