"""Looking inside a model from outside: hooks on named submodules, views for terminals.

terminal           how wide text is on a screen       heatmap    weights -> lines of shaded blocks
cross_attention    a model and a pair of texts -> what each written token looked at
"""
