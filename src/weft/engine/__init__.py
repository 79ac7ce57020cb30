"""A loaded model at work: text in, text out. So far over the plain loops of models/.

load     a path -> LoadedModel
model    LoadedModel: translate, generate, perplexity
stream   ids, one at a time -> pieces of text that are whole characters
loss     texts -> how well a decoder foresaw them
"""
