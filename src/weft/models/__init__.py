"""Models: the layers put together. config -> build -> encoder, decoder or encoder_decoder; stack
is what they share."""
