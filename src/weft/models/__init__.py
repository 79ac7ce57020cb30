"""Models, put together from the layers of nn/.

config             ModelConfig
build              config -> a model with fresh weights; the table of model kinds
stack              embedding, layers and final norm: what encoders and decoders share
visibility         the attention mask of a batch
encoder            encoder-only models (BERT)
decoder            decoder-only models (GPT, Llama)
encoder_decoder    encoder-decoder models (Vaswani 2017)
compile            a packed stack -> descriptions for native/compiled_stack.py
cost               parameters, KV cache bytes and FLOPs of a config
"""
