"""A parsed template -> one that counts: a step in every loop, a weight for all that it makes.

{% for x in y %}...      every round calls `tick`
a ~ b                    becomes a call that asks before it joins
[a, b], {a: b}, (a, b)   are weighed when they are made, so that lists inside lists stay small
text between tags        is an expression like any other, so that writing it is counted
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

from weft.text.sandbox.limits import LimitError

FORBIDDEN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
"""What brings other files in."""
MAX_NODES, MAX_NESTING = 20_000, 32
"""Parts of a template, and loops inside loops; jinja2 is slow to compile more than that."""


def rewrite(tree: nodes.Template) -> nodes.Template:
    """The changed template; an error if it uses other files, or is too large."""
    check(tree)
    changed: nodes.Template = Weighing().visit(tree)
    return changed


def check(tree: nodes.Template) -> None:
    """Look at every part once, without calling itself: a part may be very deep."""
    stack: list[tuple[nodes.Node, int]] = [(tree, 0)]
    count = 0
    while stack:
        node, nesting = stack.pop()
        count += 1
        if isinstance(node, FORBIDDEN):
            raise SecurityError(f"it uses {{% {type(node).__name__.lower()} %}}")
        nesting += isinstance(node, nodes.Stmt)
        if count > MAX_NODES or nesting > MAX_NESTING:
            raise LimitError(f"it has more than {MAX_NODES} parts, or {MAX_NESTING} in each other")
        stack.extend((child, nesting) for child in node.iter_child_nodes())


def own_call(name: str, *args: nodes.Expr) -> nodes.Call:
    """A call of a function that the environment has for this."""
    return nodes.Call(nodes.EnvironmentAttribute(f"weft_{name}"), list(args), [], None, None)


class Weighing(NodeTransformer):
    """Visits the inside of a node first, then changes the node."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(own_call("tick"), lineno=node.lineno))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return own_call("same", nodes.Const(node.data))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return own_call("concat", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return own_call("same", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return own_call("same", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return own_call("same", node) if node.ctx == "load" else node
