"""Sampling: next-token logits -> token ids.

    params              SamplingParams: temperature, top-k, penalties, seed, with ranges and help
    logits_processors   penalties, bias and bans, then temperature and top-k, top-p, min-p
    sampler             logits_BV and one SamplingRow per row -> ids_B; seeded draws

A new sampler is a field in `params.py` (and its key in SamplingKeywords below it) and a function
with its table entry in `logits_processors.py`. The command-line option and the Python keyword are
derived from the field.
"""
