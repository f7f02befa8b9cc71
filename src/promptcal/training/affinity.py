"""Stage 2, contrastive affinity learning: a teacher, a memory and an affinity graph for each token (Eq. 6 to 9)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from promptcal.affinity import EmbeddingMemory, affinity_graph, apply_label_prior, sample_negatives
from promptcal.config import Config
from promptcal.losses import contrastive_loss, semi_supervised_terms
from promptcal.models import Network, Teacher, projected_cosine
from promptcal.training.stage import Batch, StepResult


class AffinityTerm(NamedTuple):
    loss: Tensor
    logs: dict[str, Tensor]


class AffinityStage:
    """``truth`` (class number by image, -1 = unknown) is only for the statistics of the graph."""

    name = "affinity"

    def __init__(self, network: Network, config: Config, truth: Tensor | None = None) -> None:
        self.network = network
        self.config = config
        self.truth = truth
        self.teacher = Teacher(network, config.affinity.teacher_momentum)
        device = next(network.parameters()).device
        self.memories = {
            token: EmbeddingMemory(config.affinity.memory, network.vit.dim, device) for token in network.tokens
        }
        self._to_push: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        weights = self.config.loss
        beta = self._beta(epochs_done)
        student, teacher = self.network(batch.views), self.teacher(batch.views)
        total = torch.zeros((), device=batch.views.device)
        logs: dict[str, Tensor] = {}
        for token in self.network.tokens:
            terms = semi_supervised_terms(
                projected_cosine(student[token].z, teacher[token].z),
                batch.labels,
                self_temperature=weights.self_temperature,
                supervised_temperature=weights.supervised_temperature,
            )
            affinity = self._affinity_term(token, student[token].h, teacher[token].h, batch)
            loss = weights.alpha * terms.supervised + (1 - weights.alpha) * (
                (1 - beta) * terms.self_supervised + beta * affinity.loss
            )
            total = total + (loss if token == "cls" else weights.gamma * loss)
            logs[f"{token}/self"] = terms.self_supervised.detach()
            logs[f"{token}/supervised"] = terms.supervised.detach()
            logs |= {f"{token}/{name}": value for name, value in affinity.logs.items()}
        # pushed only once the gradient is taken, which still needs the memory as it was
        self._to_push = {token: (output.h, batch.labels, batch.indices) for token, output in teacher.items()}
        return StepResult(total, logs)

    def after_update(self) -> None:
        for token, rows in self._to_push.items():
            self.memories[token].push(*rows)
        self._to_push = {}
        self.teacher.update()

    def _beta(self, epochs_done: float) -> float:
        ramp = self.config.switches.beta_ramp_epochs
        return self.config.loss.beta * (min(1.0, epochs_done / ramp) if ramp else 1.0)

    def _affinity_term(self, token: str, queries: Tensor, teacher: Tensor, batch: Batch) -> AffinityTerm:
        """CAL: pull a query to its own teacher embedding and to what the affinity graph finds for it."""
        memory = self.memories[token]
        if len(memory) == 0:
            return AffinityTerm(queries.sum() * 0.0, {})
        settings, switches = self.config.affinity, self.config.switches
        n = len(queries)
        other_view = teacher.roll(n // 2, dims=0)  # the graph's node for a query is the teacher's other view
        graph = affinity_graph(
            other_view,
            memory.embeddings,
            self.config.neighbours,
            settings.quantile,
            steps=settings.diffusion_steps,
            include_diagonal=switches.threshold_diagonal,
        )
        own_node = torch.eye(n, dtype=torch.bool, device=queries.device)
        if switches.keys == "memory":
            keys, key_labels, key_indices = memory.embeddings, memory.labels, memory.indices
            positives, drawable = graph.positives[:, n:], None
        else:
            swapped = [rows.roll(n // 2, dims=0) for rows in (batch.labels, batch.indices)]
            keys = torch.cat([other_view, memory.embeddings])
            key_labels = torch.cat([swapped[0], memory.labels])
            key_indices = torch.cat([swapped[1], memory.indices])
            # both views of the query's own image: one is its own positive, added below, the other is itself (j = i)
            own_image = own_node | own_node.roll(n // 2, dims=1)
            drawable = ~torch.cat([own_image, own_image.new_zeros(n, len(memory))], dim=1)
            positives = graph.positives & drawable
        logs = self._graph_statistics(positives, graph.threshold, batch.indices, key_indices)

        negatives = sample_negatives(
            positives,
            settings.negatives,
            subtract_positives=switches.negatives == "budget-minus-positives",
            candidates=drawable,
            generator=batch.generator,
        )
        positives, negatives = apply_label_prior(positives, negatives, batch.labels, key_labels)
        if drawable is not None:
            positives, negatives = positives & drawable, negatives & drawable

        same_view = token == "cls" and switches.own_positive == "same-view"
        own = teacher if same_view else other_view
        always = own_node.new_ones(n, 1)
        similarity = torch.cat([(queries * own).sum(dim=1, keepdim=True), queries @ keys.T], dim=1)
        loss = contrastive_loss(
            similarity,
            torch.cat([always, positives], dim=1),
            torch.cat([always, positives | negatives], dim=1),
            self.config.loss.affinity_temperature,
        )
        return AffinityTerm(loss, {"affinity": loss.detach(), **logs})

    def _graph_statistics(
        self, positives: Tensor, threshold: Tensor, query_indices: Tensor, key_indices: Tensor
    ) -> dict[str, Tensor]:
        """How the graph fares before the labels correct it; it can starve or flood without a word."""
        found = positives.sum(dim=1)
        logs = {
            "positives": found.float().mean(),
            "without_positives": (found == 0).float().mean(),
            "threshold": threshold,
        }
        if self.truth is not None:
            query_truth, key_truth = self.truth[query_indices], self.truth[key_indices]
            told = (query_truth >= 0).unsqueeze(1) & (key_truth >= 0).unsqueeze(0)
            right = told & (query_truth.unsqueeze(1) == key_truth.unsqueeze(0))
            hits = (positives & right).sum()
            logs["precision"] = hits / (positives & told).sum().clamp(min=1)
            logs["recall"] = hits / right.sum().clamp(min=1)
        return logs

    def state_dict(self) -> dict[str, Any]:
        return {
            "teacher": self.teacher.state_dict(),
            "memories": {token: memory.state_dict() for token, memory in self.memories.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher.load_state_dict(state["teacher"])
        for token, memory in self.memories.items():
            memory.load_state_dict(state["memories"][token])
