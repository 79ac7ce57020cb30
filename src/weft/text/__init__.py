"""Text <-> ids, corpora -> batches. The files, in the order the data walks through them:

corpus        files -> lines, and pairs of lines
spool         lines -> a bounded, seeded sample of them, on disk
settings      TokenizerConfig: which tokenizer a corpus becomes
kinds/        sample -> vocabulary; one file a kind
train         lines -> a whole tokenizer: normalise, cut, model, begin and end, decode
tokenizer     Tokenizer: text <-> ids (with fit, spans, specials, storage, token_bytes)
foreign/      the tokenizer files of others -> Tokenizer; one file a format
chat_template      messages -> the prompt that a model continues, by its own template
template_sandbox   renders templates in a helper process with limits on memory and time
template_renderer  the program of that process: jinja2's sandbox, nothing of Weft
bpe_dropout   text -> ids, spelled a little differently each time, by seed
report        what was cut, empty or unknown, counted
batches       lengths -> batches of a token budget
samples       documents -> packed samples of equal length
collate       ids -> padded tensors; the only file here that needs torch
"""
