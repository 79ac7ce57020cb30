"""Files -> the batches of each epoch, as a pure function of seed and epoch.

    files       the files of a run, their lines and hashes
    pairs       two files or a TSV -> batches for an encoder-decoder
    texts       packed samples for lm and mlm
    inspection  the data report
    tokens      token ids of texts in a memory-mapped file

Each process reads and encodes only its own rows (row number modulo world size); lengths alone are
exchanged, so that all processes agree on the batches.
"""
