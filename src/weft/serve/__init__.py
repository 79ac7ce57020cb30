"""The HTTP server. Modules that do not depend on a protocol:

output_parser   generated text -> text, reasoning and tool calls, as deltas; reasoning formats
tools           definitions of functions, checked; conversations for templates without tools
tool_formats    how model families write tool calls
tool_grammars   grammars that allow only calls of the given functions
call_readers    the texts of tool calls, read as they arrive
json_scanner    JSON that arrives in parts, validated character by character
"""
