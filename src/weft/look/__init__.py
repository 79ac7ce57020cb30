"""Views of a model's internals, by hooks on named submodules; nothing below imports this package.

trace              every stage of one forward pass: values, next tokens, words
trace_data         the parts of a trace: model, tokens, words, stages, names of heads
trace_json         a trace <-> JSON, schema weft.trace/1
stages             names, axes, formulas and inputs of all stages
formulas           the formulas of the stages in one model
recorder           records a trace, at once or in units of work
trace_input        texts -> the tokens that a trace is recorded of
trace_model        a config -> what a trace says of its model
words              tokens with their bytes, and the words they belong to
stack_pass         one pass of a stack in blocks of rows, with all keys and values kept
part_recorder      the stages of one layer -> what a trace keeps
sublayer_stages    attention and feed-forward with hooks; scores computed from their input
taps               hooks on modules during one call
stored_rows        values that a trace does not keep, computed again
neighbors          tokens with the most similar embeddings
next_tokens        logits -> the most likely next tokens
rankings           heads by the weight of one word on another; attention rollout
logit_lens         the LM head on the output of each layer
ablation           changes of the logits without some heads
scratch_engine     a second engine on the same weights, with few pages, stepped by its owner
prefix_sharing     why a prompt did not share the cached prefix of another
host               what the routes need of the server
routes             HTTP routes of traces, for `weft serve`
route_bodies       their bodies and results
scratch_routes     HTTP routes of scratch engines
scratch_bodies     their bodies and results
scratch_sessions   the scratch engines of callers, and their answers as JSON
cache_stream       the serving engine's cache as a stream of events
decode_stream      one request decoded step by step, as a stream of events
event_stream       server-sent events with ids
trace_store        the last traces of a server; one is recorded at a time
assets             the web page as an ASGI application; its files are in page/
modules            the modules of the page as a script for each view
export             a trace as one HTML file, or as a cell of a notebook
attention_weights  cross- and self-attention weights of one forward pass
heatmap            a matrix of weights -> lines of shaded blocks
terminal           width of text on a screen, padding, truncation, shades
trace_views        a trace as text: tokens, rows, maps, heads, alignment, stages
prediction_views   logit lens and ablation as text
bars               bars, tables and columns of text
block_map          a matrix of weights -> lines of shaded blocks, two columns per cell
head_table         entropy, largest weight, distance of heads, as a table
alignment          cross-attention -> for each target token its source words
svg                a head -> SVG
watch_state        pages and prefix tree of an engine between two steps, tokens with alternatives
watch_view         these as the lines of a live view
"""
