"""GGUF files, llama.cpp's format: one file with settings, tokenizer and (quantized) weights.

header             metadata and tensor table, without tensor data
skipped_strings    arrays of strings that are skipped
hf_names           the header in Hugging Face's terms: values of a config.json, tensor names
reader             a file as if it were a Hugging Face folder -> a Checkpoint
writer             a Checkpoint -> a file
tensors            tensors as float32 or quantized, under GGUF's or Hugging Face's names
dequantize         blocks -> float32
quantized_blocks   blocks -> QuantizedMatrix
loaded_size        the header -> memory that the weights take when they are loaded
special_ids        ids of BOS, EOS and PAD
vocabularies/      tokenizers, one file per kind

Which metadata and tensor names an architecture has is in its family (families/).
"""
