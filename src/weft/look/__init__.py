"""Traces of forward passes, recorded by hooks on named submodules, and their views.

trace              Trace: every stage of one forward pass
trace_data         data classes of a trace: model, tokens, words, stages, names of heads
trace_json         a trace <-> JSON, schema weft.trace/1
stages             names, axes, formulas and inputs of all stages
formulas           the formulas of the stages in one model
recorder           records a trace, at once or in units of work
trace_input        texts or ids -> the input tokens of a trace
trace_model        ModelConfig -> the description of the model in a trace
words              tokens with their bytes, and the words they belong to
stack_pass         one pass of a stack in blocks of rows, with all keys and values kept
part_recorder      runs the parts of one layer and keeps their stages
sublayer_stages    attention and feed-forward with hooks; scores computed from their input
taps               hooks on modules during one call
stored_rows        recomputes values that a trace does not keep
neighbors          tokens with the most similar embeddings
next_tokens        logits -> the most likely next tokens
rankings           heads ranked by the weight of one word on another; attention rollout
logit_lens         the LM head on the output of each layer
ablation           changes of the logits by ablated heads
scratch_engine     ScratchEngine: a second engine on the same weights, with few pages
prefix_sharing     why a prompt did not share the cached prefix of another
host               the interface of the server that the routes use
routes             HTTP routes of traces, for `weft serve`
route_bodies       request bodies and results of routes.py
scratch_routes     HTTP routes of scratch engines
scratch_bodies     request bodies and results of scratch_routes.py
scratch_sessions   ScratchSessions: the scratch engines of callers, and their JSON
cache_stream       HTTP route: changes of the serving engine's cache as events
decode_stream      HTTP route: one request decoded step by step, as events
event_stream       server-sent events with ids
trace_store        the last traces of a server, and the queue of those to be recorded
assets             the web page as an ASGI application; its files are in page/
modules            bundles the ES modules of the page: one script per view
export             a trace as one HTML file, or as a cell of a notebook
attention_weights  cross- and self-attention weights of one forward pass
heatmap            a matrix of weights -> lines of shaded blocks
terminal           display width of text, padding, truncation, shades
trace_views        a trace as text: tokens, rows, maps, heads, alignment, stages
prediction_views   logit lens and ablation as text
bars               bars, tables and columns of text
block_map          the same with two columns per cell
head_table         entropy, largest weight, distance of heads, as a table
alignment          cross-attention -> for each target token its source words
svg                a head -> SVG
watch_state        pages and prefix tree of an engine between two steps, tokens with alternatives
watch_view         the live view of watch_state as lines of text
"""
