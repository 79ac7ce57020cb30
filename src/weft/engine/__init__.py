"""The inference engine: text in, text out, many requests at once.

Modules in the order in which a request passes through them:

    loaded_model    a path -> LoadedModel: translate, generate, chat, embed, perplexity
    request_builder texts and GenerationOptions -> GenerationRequests
    request         GenerationRequest, SampleState, RequestOutput
    request_checks  token ids that the model does not have are rejected at submission
    config          EngineConfig and SchedulerConfig
    memory_budget   weights, KV cache and workspace, compared with the available memory
    async_engine    an engine for threads and event loops, which submit and receive
    output_stream   what an event loop receives of it
    engine_thread   one thread that steps any number of engines
    background_units    long computations in units of some milliseconds, between two steps
    turns           equal shares of its time
    client          its synchronous side for several callers; Completion, Translation
    request_iterator results of requests, which are aborted when it is closed or dropped
    engine          one step: schedule, run, sample, commit
    engine_state    requests, samples and searches between two steps; results not yet returned
    recovery        after an exception: recount, or reset; the request at fault is isolated
    interrupts      SIGINT takes effect between two forward passes
    scheduling/     requests -> plans, integers only
    model_runner    a plan -> forward passes -> next-token logits
    layered_forward a forward pass whose layers are run in several steps
    thread_controller   how many threads a step uses, from measured step times
    input_batch     chunks of many sequences -> packed tokens and page tables
    logits          NextTokenLogits: logits, or only the top k, computed when needed
    sampling_step   logits -> tokens, text and outputs
    speculative     drafts by prompt lookup
    grammar         constrained decoding: schemas, regular expressions, texts, Lark grammars
    grammar_limits  which of them are too large
    grammar_probe   the program of a child process that compiles a grammar with limits
    detokenizer     tokens -> text, stop strings; FinishReason
    logprobs        log-probabilities of chosen tokens
    beam_search     BeamSearch of one request; BeamBatch: all searches of a plan as arrays
    pooling         texts -> vectors; texts -> log-likelihoods
    attention_rows  attention weights of a token, from the KV cache; finished requests
    cache_file      prefix cache <-> file
    cache_index     which page of a cache file belongs to which tokens, checked
    arithmetic      what the bits of a forward pass depend on besides weights
    worker_pool     processes with an engine each
    stats           counters, hit rates with the optimum, pages, preemptions, evictions
"""
