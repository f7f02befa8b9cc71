"""The embedding memory against a Python list."""

import pytest
import torch

from promptcal.methods.promptcal.graph.memory import EmbeddingMemory


def rows(start, n):
    values = torch.arange(start, start + n)
    return values.float().unsqueeze(1).expand(n, 2).clone(), values % 3 - 1, values


@pytest.mark.parametrize("pushes", [[3], [4, 4, 4], [10], [7, 6, 3, 10, 1], [25], [0, 5]])
def test_holds_the_last_rows_pushed(pushes):
    memory = EmbeddingMemory(10, 2)
    kept, start = [], 0
    for n in pushes:
        memory.push(*rows(start, n))
        kept = (kept + list(range(start, start + n)))[-10:]
        start += n
        assert len(memory) == len(kept)
        assert sorted(memory.indices.tolist()) == kept
        assert torch.equal(memory.embeddings[:, 0].long(), memory.indices)
        assert torch.equal(memory.labels, memory.indices % 3 - 1)


def test_a_restored_memory_continues_as_the_saved_one():
    memory = EmbeddingMemory(5, 2)
    memory.push(*rows(0, 7))
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in memory.state_dict().items()}
    copy = EmbeddingMemory(5, 2)
    copy.load_state_dict(state)
    for target in (memory, copy):
        target.push(*rows(7, 2))
    assert torch.equal(memory.embeddings, copy.embeddings)
    assert torch.equal(memory.indices, copy.indices)


def test_pushed_rows_carry_no_gradient():
    memory = EmbeddingMemory(4, 2)
    embeddings, labels, indices = rows(0, 2)
    memory.push(embeddings.requires_grad_(), labels, indices)
    assert not memory.embeddings.requires_grad
