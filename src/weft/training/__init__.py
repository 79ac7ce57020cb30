"""Training: a recipe and files -> a model folder.

settings    what a recipe says            data/       files -> batches
objective   batch -> loss                 loss        logits -> loss, nothing stored
optimiser   gradients -> weights          schedule    step -> learning rate
state       what a run must remember      resume      remembering it on disk
loop        the run                       evaluate    validation
"""
