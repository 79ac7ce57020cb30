"""A model at work: text in, text out, many requests at once.

The life of a request, and the file to read for each part:

    load, model    a path -> LoadedModel: translate, generate, chat, embed, perplexity
    kinds          what a kind of model cannot do, said before anything is read
    options        what can be asked of a text: limits, stops, grammars, penalties
    requests       texts and options -> what is asked of the engine
    answers        what comes back, whole
    writing        what is asked (Writing), what comes back (Update), and the lines in between
    desk           callers of one process share an engine, each follows its own requests
    engine         one step: plan, run, choose, publish
    scheduling/    requests -> plans, integers only
    lanes, pack    chunks of many sequences -> one packed row and its page tables
    runner         a plan -> one pass through the layers, or several -> chances
    compiled_decode    decode steps of a plan by the compiled stack
    chances        what may come next: logits, or only the best ids
    step           chances -> tokens: sampling with drafts, grammars, stops, log-probabilities
    beam, ranking  chances -> which beams go on
    burst, beam_burst  the same through several passes of one plan: single beams, several beams
    team           processes with an engine each
    embed, loss    texts -> vectors; texts -> how well a decoder foresaw them
    attention      where a token of a request looked, from the keys in the pages (past: its tokens)
    saving         the caches across a restart
    stats          counters, hit rates with the optimum, pages, preemptions, evictions
    config         EngineConfig and SchedulerConfig
    lines, memory  what engine makes its lines and its pages with
"""
