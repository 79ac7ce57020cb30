"""The HTTP server. What holds for all protocols, in the order in which a request meets it:

    server          sockets, signals, startup in the background, drain
    startup_checks  what must hold before it starts: keys, TLS files, a chat template
    sockets         listening sockets; who holds a port; sd_notify
    model_names     names of served models
    model_loading   settings -> a Service; models are loaded and warmed up
    cache_shares    --cache -> the KV cache of each model
    app             the ASGI application: ids, API keys, limits, errors in each protocol's shape
    config          ServeConfig: the options of `weft serve`
    access          web pages must not use a server on the same machine unasked
    api_keys        API keys: callers, and their namespaces in the prefix cache
    context         Service, HttpCall and RequestRecord: what routes know about a request
    api_route       the class of all routes: strict JSON, declared errors
    json_bodies     JSON that is read so strictly that it can be returned
    schema_types    JSON schemas of fields, for /openapi.json
    openapi         /openapi.json with the names and sizes of the served models
    bodies          request bodies: every field has a class, and unknown ones are rejected
    served_model    names -> loaded models with their engines
    cache_keeping   prefix caches <-> files, for --keep
    text_options    options of a text -> GenerationRequest
    watchdog        an engine that is stuck or dead ends the process
    server_metrics  Prometheus metrics with vLLM's names
    request_log     one line for each request
    docs_page       the page with all routes
    limits          load shedding: 429 and when to try again
    retry_queue     refused requests that are expected back
    conversation    messages and tools -> prompt, grammar and parser, for all chat protocols
    generation      engine outputs -> events of choices; usage
    output_parser   generated text -> text, reasoning and tool calls, as deltas; reasoning formats
    tools           functions that a request offers: checked, and described in a system message
    tool_formats    how model families write tool calls
    tool_grammars   grammars of tool calls
    call_readers    the texts of tool calls, read as they arrive
    json_scanner    JSON that arrives in parts, validated character by character
    recent_responses    ids of responses -> engine requests, for /v1/attention
    streaming       server-sent events and JSON lines, with pings, errors and disconnects
    text_vectors    texts -> vectors of length 1, through the engine
    responses       JSON responses, and the errors that routes declare
    api_errors      ApiError, and its body in each protocol
    protocols       the table of the files below

One file for each family of endpoints: its bodies, protocol -> GenerationRequest, and choices ->
protocol, whole and streamed:

    prompt_logprobs     log-probabilities of prompts
    completion_logprobs log-probabilities in the form of /v1/completions
    openai_fields       fields that several of OpenAI's routes have; usage; finish reasons
    openai_tools        tools in OpenAI's requests
    openai_chat         /v1/chat/completions
    openai_completions  /v1/completions
    openai_embeddings   /v1/embeddings
    openai_models       /v1/models
    openai_responses    /v1/responses
    openai_results      what OpenAI's routes return, for /openapi.json and tests
    response_items      items of a conversation, as /v1/responses has them -> messages
    response_events     choices -> output items of /v1/responses, and the events of a stream
    response_store      responses that later requests may continue
    anthropic_messages  /v1/messages and /v1/messages/count_tokens
    anthropic_events    choices -> Anthropic's messages, whole and streamed
    anthropic_results   what Anthropic's routes return
    rerank              /v1/rerank and /v1/score: relevance of texts
    tokenization        /tokenize and /detokenize
    libretranslate      /translate and /languages
    attention           /v1/attention: attention weights of a recent response
    ollama              Ollama's /api/chat and /api/generate
    ollama_embeddings   /api/embed, /api/embeddings
    ollama_models       /api/tags, /api/ps, /api/show, /api/version
    ollama_results      what Ollama's routes return
    ollama_fields       fields that several of Ollama's routes have; options; thinking; times
    ollama_messages     messages and tool calls between Ollama's form and OpenAI's
    operation_results   what the routes for operators return
    operations          /health, /ready, /metrics, /v1/loads, /server_info, /version, /docs, /
    model_facts         sizes and kinds of a model's components, for /server_info
    page_requests       which requests the web page answers
"""
