"""The HTTP server. Modules for all protocols, roughly in the order in which a request uses them:

    server          sockets, signals, startup in the background, drain
    startup_checks  checks before it starts: API keys, TLS files, chat template
    sockets         listening sockets; the process that uses a port; sd_notify
    model_names     names of served models
    model_loading   settings -> a Service; models are loaded and warmed up
    cache_shares    --cache -> KV cache size of each model
    app             the ASGI application: request ids, API keys, limits, error format of a protocol
    config          ServeConfig: the options of `weft serve`
    access          Host, Origin and CORS checks against requests of foreign web pages
    api_keys        API keys: callers, and their namespaces in the prefix cache
    context         Service (the server), HttpCall (one request), RequestRecord (its log entry)
    api_route       the class of all routes: strict JSON, declared errors
    field_hints     suggestions for unknown fields
    json_bodies     strict JSON parsing of request bodies
    schema_types    JSON schemas of fields, for /openapi.json
    openapi         /openapi.json with the names and sizes of the served models
    bodies          request bodies: every field has a class, and unknown ones are rejected
    served_model    ServedModel and ModelRegistry: names -> loaded models with their engines
    cache_keeping   prefix caches <-> files, for --keep
    text_options    generation options -> GenerationRequest
    watchdog        ends the process if an engine is stuck or dead
    server_metrics  Prometheus metrics with vLLM's names
    request_log     one line for each request
    docs_page       the page with all routes
    limits          load shedding: 429 with Retry-After
    retry_queue     refused requests that are expected to return
    conversation    messages and tools -> prompt, grammar and parser, for all chat protocols
    generation      engine outputs -> events of choices; usage
    output_parser   generated text -> text, reasoning and tool calls, as deltas; reasoning formats
    tools           functions that a request offers: checked, and described in a system message
    call_ids        ids of tool calls whose client sends none
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

    prompt_logprobs     log-probabilities of prompts: echo, prompt_logprobs
    completion_logprobs log-probabilities in the form of /v1/completions
    openai_fields       fields that several of OpenAI's routes have; usage; finish reasons
    pending_logprobs    log-probabilities of the parts of an answer: text, reasoning
    openai_tools        tools in OpenAI's requests
    openai_messages     messages of OpenAI's chats -> as chat templates read them
    openai_chat         /v1/chat/completions
    openai_completions  /v1/completions
    openai_embeddings   /v1/embeddings
    openai_models       /v1/models
    openai_responses    /v1/responses
    openai_results      response classes of OpenAI's routes, for /openapi.json and tests
    response_items      items of a conversation, as /v1/responses has them -> messages
    response_events     choices -> output items of /v1/responses, and the events of a stream
    response_store      stored responses, for previous_response_id
    anthropic_messages  /v1/messages and /v1/messages/count_tokens
    anthropic_events    choices -> Anthropic's messages, whole and streamed
    anthropic_results   response classes of Anthropic's routes
    rerank              /v1/rerank and /v1/score: relevance of texts
    tokenization        /tokenize and /detokenize
    libretranslate      /translate and /languages
    attention           /v1/attention: attention weights of a recent response
    ollama              Ollama's /api/chat and /api/generate
    ollama_embeddings   /api/embed, /api/embeddings
    ollama_models       /api/tags, /api/ps, /api/show, /api/version
    ollama_results      response classes of Ollama's routes
    ollama_fields       fields that several of Ollama's routes have; options; thinking; times
    ollama_messages     messages and tool calls between Ollama's form and OpenAI's
    operation_results   response classes of the routes for operators
    operations          /health, /ready, /metrics, /v1/loads, /server_info, /version, /docs, /
    model_facts         sizes and kinds of a model's components, for /server_info
    page_requests       requests that are answered by the web page
"""
