"""The HTTP server. Modules that do not depend on a protocol:

output_parser   generated text -> text, reasoning and tool calls, as deltas; reasoning formats
tool_formats    how model families write tool calls
call_readers    the texts of tool calls, read as they arrive
json_scanner    JSON that arrives in parts, validated character by character
"""
