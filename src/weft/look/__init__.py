"""Views of a model's internals, by hooks on named submodules; nothing below imports this package.

attention_weights   cross- and self-attention weights of one forward pass
heatmap             a matrix of weights -> lines of shaded blocks
terminal            width of text on a screen, padding, truncation, shades
"""
