"""Reads YAML from untrusted files: plain values only, and a limited number of them."""

from typing import Any

import yaml

_MAX_VALUES = 100_000


def read_yaml(text: str) -> Any:
    """The plain values of a YAML document; `ValueError` if it is invalid or its aliases expand to too many values.

    Nested aliases can expand a few lines to more values than fit into memory.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _size(node, {}) > _MAX_VALUES:
                raise ValueError("its aliases stand for too many values")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of values of a node with its aliases expanded; a node that contains itself is an error."""
    known = sizes.get(id(node))
    if known is not None:
        if not known:
            raise ValueError("an alias in it stands for itself")
        return known
    sizes[id(node)] = 0  # marks a node that is being counted
    if isinstance(node, yaml.MappingNode):
        total = sum(_size(part, sizes) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        total = sum(_size(part, sizes) for part in node.value)
    else:
        total = 0
    sizes[id(node)] = total + 1
    return total + 1
