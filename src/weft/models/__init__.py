"""Models, put together from the layers of nn/.

config         ModelConfig
build          config -> a model with fresh weights; the table of model kinds
stack          embedding, layers and final norm, with the masks of a batch
transformer    Encoder, Decoder and EncoderDecoder
compile        a packed stack -> descriptions for native/compiled_stack.py
weight_shapes  names and shapes of the weights of a config, without building it
cost           parameters, KV cache bytes and FLOPs of a config
"""
