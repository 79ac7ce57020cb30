"""Files -> the batches of each epoch, as a pure function of seed and epoch.

    base    Batch, Data: what the loop reads      ragged   many rows of ids in two arrays
    pairs   two files, or a TSV                   texts    packed samples for lm and mlm

Every process reads and encodes only its own rows (row number modulo processes); lengths alone are
exchanged, so that all processes agree on the batches.
"""
