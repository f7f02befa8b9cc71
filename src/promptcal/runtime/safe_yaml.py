"""YAML from files that nobody vouches for: plain values only, and no more of them than are written down."""

from typing import Any

import yaml

_MOST_VALUES = 100_000


def read_yaml(text: str) -> Any:
    """The plain values of a YAML document; a `ValueError` where it is none, or would grow without bounds.

    An alias stands for all it names, so that a few lines of aliases of aliases can stand for more than memory holds.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _size(node, {}) > _MOST_VALUES:
                raise ValueError("its aliases stand for too many values")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node stands for, aliases written out; those that hold themselves are refused."""
    known = sizes.get(id(node))
    if known is not None:
        if not known:
            raise ValueError("an alias in it stands for itself")
        return known
    sizes[id(node)] = 0  # until it is counted
    if isinstance(node, yaml.MappingNode):
        total = sum(_size(part, sizes) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        total = sum(_size(part, sizes) for part in node.value)
    else:
        total = 0
    sizes[id(node)] = total + 1
    return total + 1
