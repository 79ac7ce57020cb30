"""The inference engine: continuous batching of requests over a paged KV cache.

Modules in the order in which a request passes through them:

    loaded_model    a path -> LoadedModel: translate, generate, chat, embed, perplexity
    request_builder texts and GenerationOptions -> GenerationRequests
    request         GenerationRequest, SampleState, RequestOutput
    request_checks  token ids that the model does not have are rejected at submission
    config          EngineConfig and SchedulerConfig
    memory_budget   weights, KV cache and workspace, compared with the available memory
    async_engine    AsyncEngine: any thread or event loop submits requests and receives outputs
    output_stream   OutputStream: the outputs of some requests for one coroutine
    engine_thread   EngineThread: steps any number of engines
    background_units    long computations in units of a few milliseconds, between engine steps
    turns           which engine of a thread runs its next step: equal shares of time
    client          EngineClient: synchronous callers of an AsyncEngine; Completion, Translation
    request_iterator results of requests; closing or dropping it aborts them
    engine          one step: schedule, run, sample, commit
    engine_state    EngineState: requests, samples, searches and unreturned outputs between steps
    recovery        after an exception: restore consistency, isolate the request at fault
    interrupts      SIGINT is deferred to the end of a forward pass
    scheduling/     requests -> plans, integers only
    model_runner    a plan -> forward passes -> next-token logits
    layered_forward a forward pass whose layers are computed in several steps
    thread_controller   how many threads a step uses, from measured step times
    input_batch     chunks of many sequences -> packed tokens and page tables
    logits          NextTokenLogits: logits, or only the top k, computed when needed
    sampling_step   logits -> tokens, text and outputs
    speculative     drafts by prompt lookup
    grammar         constrained decoding: JSON schemas, regular expressions, choices, grammars
    grammar_limits  limits on their size, checked before they are compiled
    grammar_probe   program of a child process that compiles a grammar with limits
    detokenizer     tokens -> text, stop strings; FinishReason
    logprobs        log-probabilities of chosen tokens
    beam_search     BeamSearch of one request; BeamBatch: all searches of a plan as arrays
    pooling         embeddings of texts; log-likelihoods of texts
    attention_rows  attention weights of a token, recomputed from the KV cache
    cache_file      prefix cache <-> file
    cache_index     index of a cache file: the tokens or source of each page, validated
    arithmetic      library versions and settings that the bits of a forward pass depend on
    worker_pool     WorkerPool: worker processes with one engine each
    stats           counters; hit rate of the prefix cache and the optimal hit rate
"""
