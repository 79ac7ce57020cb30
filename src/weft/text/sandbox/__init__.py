"""Templates that strangers wrote, rendered so that they can neither reach out nor run away.

limits        Budget: how much one rendering may write, keep and do; what a value weighs
operations    the operators and methods of text that grow it, weighed before they run
filters       the filters of jinja2 that templates of conversations use, each weighed
rewrite       a parsed template, changed so that loops count and lists are weighed
environment   jinja2's sandbox with only those

jinja2's own sandbox keeps templates from reaching Python; it does not keep `'a' * 10 ** 9` or
nested loops from taking all memory or time. Here every operation that makes something new is
weighed before it runs, and what a template may call is a list of what is known to be harmless.
"""

from __future__ import annotations

from weft.text.sandbox.environment import RefusalError, compile_template, render
from weft.text.sandbox.limits import LimitError, Limits

__all__ = ["LimitError", "Limits", "RefusalError", "compile_template", "render"]
