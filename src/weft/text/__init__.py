"""Text <-> token ids, corpora -> batches. The modules, in the order of the data flow:

corpus              files -> lines, and pairs of lines
languages           language codes of translation models, and their names
tokenizer_kinds     the kinds of tokenizer that can be trained: character, word, bpe, unigram, byte
tokenizer_training  TokenizerConfig; lines -> a sample of them -> a trained tokenizer
tokenizer           Tokenizer: text <-> ids, offsets, token bytes
tokenizer_files     tokenizer.json and tokenizer_config.json on disk
tokenizer_names     names of these files
token_labels        ids -> text that people can read
special_tokens      special tokens by role
bpe_dropout         text -> ids with randomly skipped merges, seeded
encoding            begin and end, truncation, and the counts of it
piece_merges        pieces with scores (SentencePiece) -> BPE merges
hf/                 tokenizer files of Hugging Face folders -> Tokenizer; one file a format
chat_messages       messages with tool calls and reasoning, checked, as templates read them
chat_template       messages -> the prompt that a model continues, by its own template
chat_encoding       messages -> its ids; special tokens in what callers send stay text
template_sandbox    renders templates in a helper process with limits on memory and time
template_renderer   the program of that process: jinja2's sandbox, nothing of Weft
batching            lengths -> batches under a token budget; ids -> padded tensors (needs torch)
packing             documents -> packed samples of equal length
metrics             BLEU, chrF, exact match and character error rate
paired_bootstrap    whether the scores of two systems differ significantly
"""
