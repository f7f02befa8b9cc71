"""Read YAML from untrusted files: plain values only, and a limited number of them."""

from typing import Any

import yaml

_MAX_VALUES = 100_000


def read_yaml(text: str) -> Any:
    """The plain values of a YAML document; `ValueError` if it is invalid or its aliases expand to too many values.

    Nested aliases can expand a few lines to more values than fit into memory.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            return None
        if _size(node, {}) > _MAX_VALUES:
            raise ValueError("its aliases expand to too many values")
        return yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of values of a node with its aliases expanded; a node that contains itself is an error."""
    if sizes.get(id(node)) == 0:
        raise ValueError("an alias refers to itself")
    if id(node) not in sizes:
        sizes[id(node)] = 0  # marks a node that is being counted
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]
