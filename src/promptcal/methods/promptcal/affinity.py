"""Stage 2, contrastive affinity learning: a teacher, a memory and an affinity graph for each token (Eq. 6 to 9)."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from promptcal.methods.losses import SemiSupervisedTerms, contrastive_loss, semi_supervised_terms
from promptcal.methods.parametric import parametric_terms, teacher_temperature
from promptcal.methods.promptcal.graph import pairs
from promptcal.methods.promptcal.graph.affinity_graph import SAMPLED_ROWS, GraphSettings, affinity_graph, select_backend
from promptcal.methods.promptcal.graph.memory import EmbeddingMemory
from promptcal.methods.promptcal.settings import PromptCALConfig, Recipe, applies_to
from promptcal.models import ProjectionNetwork, Teacher, TokenOutput, projected_cosine
from promptcal.runtime.device import SideStream
from promptcal.training.stage import Batch, Stage, StepResult


class MinedPairs(NamedTuple):
    """Positives and negatives of each query among the keys (boolean, queries x keys), and what to log of them."""

    keys: Tensor
    positives: Tensor
    negatives: Tensor
    logs: dict[str, Tensor]


class AffinityStage(Stage):
    """Contrastive affinity learning.

    ``truth`` (class number by image, known classes first, -1 = unknown) is only used for the statistics of the graph.
    A term that is switched off for a token is 0. ``recipe`` replaces the config's, for tests of single details.
    """

    def __init__(
        self,
        network: ProjectionNetwork,
        config: PromptCALConfig,
        truth: Tensor | None = None,
        n_known: int = 0,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__("affinity", network, config)
        self.recipe = config.recipe if recipe is None else recipe
        self.truth = truth
        self.n_known = n_known
        self.graph_settings = GraphSettings(
            config.neighbours,
            config.affinity.quantile,
            config.affinity.diffusion_steps,
            self.recipe.threshold_diagonal,
            config.affinity.consensus,
        )
        self.teacher = Teacher(network, config.affinity.teacher_momentum)
        device = next(network.parameters()).device
        self.memories = {
            token: EmbeddingMemory(config.affinity.memory, network.vit.dim, device)
            for token in network.tokens
            if applies_to(token, config.affinity.cal)
        }
        self._mining_streams = {token: SideStream(device, i) for i, token in enumerate(self.memories)}
        self._to_push: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self.description = self._describe_graph()

    def _describe_graph(self) -> str:
        """Whether the affinity graph is exact; empty without one."""
        settings = self.config.affinity
        if settings.mining != "graph" or not self.memories:
            return ""
        nodes = 2 * self.config.data.batch_size + settings.memory
        backend = select_backend(nodes, self.graph_settings, next(self.network.parameters()).device)
        rows = f"{SAMPLED_ROWS:,} sampled rows" if backend == "sampled" else "all rows (exact)"
        return f"Affinity graph of {nodes:,} nodes, its threshold from {rows}"

    def capture_key(self, epochs_done: float) -> Hashable | None:
        """The weight of CAL, the number of nodes while the memory fills, and the classifier's temperature."""
        temperature = teacher_temperature(self.config.simgcd, int(epochs_done)) if self.network.classifier else None
        return self._beta(epochs_done), *map(len, self.memories.values()), temperature

    def step(self, batch: Batch, epochs_done: float) -> StepResult:
        weights = self.config.loss
        beta = self._beta(epochs_done)
        teacher = self.teacher(batch.views)
        mined: dict[str, MinedPairs] = {}
        for token, memory in self.memories.items():
            if len(memory):
                with self._mining_streams[token].run():  # beside the student, which does not need pairs yet
                    mined[token] = self._mine_pairs(teacher[token].h, memory, batch)
        try:
            student = self.network(batch.views)
        finally:
            for token in mined:
                self._mining_streams[token].wait()
        total = torch.zeros((), device=batch.views.device)
        logs: dict[str, Tensor] = {}
        for token in self.network.tokens:
            terms = self._semicl(token, student[token], teacher[token], batch)
            affinity = self._affinity_term(token, student[token].h, teacher[token].h, mined.get(token))
            loss = weights.alpha * terms.supervised + (1 - weights.alpha) * (
                (1 - beta) * terms.self_supervised + beta * affinity.loss
            )
            total = total + (loss if token == "cls" else weights.gamma * loss)
            if applies_to(token, self.config.affinity.semicl):
                logs |= terms.logs(token)
            logs |= {f"{token}/{name}": value for name, value in affinity.logs.items()}
        if self.config.affinity.classifier:
            parametric = self._parametric_term(student["cls"].h, teacher["cls"].h, batch, int(epochs_done))
            total = total + self.config.affinity.classifier * parametric.loss
            logs |= parametric.logs
        # pushed only once the gradient is taken, which still needs the memory as it was
        self._to_push = {token: (teacher[token].h, batch.labels, batch.indices) for token in self.memories}
        return StepResult(total, logs)

    def after_update(self) -> None:
        for token, rows in self._to_push.items():
            self.memories[token].push(*rows)
        self._to_push = {}
        self.teacher.update()

    def _beta(self, epochs_done: float) -> float:
        ramp = self.recipe.beta_ramp_epochs
        return self.config.loss.beta * (min(1.0, epochs_done / ramp) if ramp else 1.0)

    def _semicl(self, token: str, student: TokenOutput, teacher: TokenOutput, batch: Batch) -> SemiSupervisedTerms:
        """SemiCL: student features are queries, teacher features are keys."""
        if not applies_to(token, self.config.affinity.semicl):
            return SemiSupervisedTerms(student.h.sum() * 0.0, student.h.sum() * 0.0)
        return semi_supervised_terms(projected_cosine(student.z, teacher.z), batch.labels, self.config.loss)

    def _parametric_term(self, student: Tensor, teacher: Tensor, batch: Batch, epoch: int) -> StepResult:
        """A classifier beside the graph, as in SimGCD, taught by the teacher's."""
        cosines = self.network.classifier(student)
        targets = self.teacher.part("classifier", teacher)
        terms = parametric_terms(cosines, targets, batch.labels, self.config.simgcd, epoch)
        alpha = self.config.loss.alpha
        return StepResult(alpha * terms.supervised + (1 - alpha) * terms.unsupervised, terms.logs)

    def _mine_pairs(self, teacher: Tensor, memory: EmbeddingMemory, batch: Batch) -> MinedPairs:
        """What the affinity graph finds for each query, with sampled negatives, corrected by labels."""
        settings, recipe, n = self.config.affinity, self.recipe, len(teacher)
        other_view = teacher.roll(n // 2, dims=0)  # the graph's node for a query is the teacher's other view
        found, logs = self._mine(other_view, memory.embeddings)
        if not recipe.batch_keys:
            keys, key_labels, key_indices = memory.embeddings, memory.labels, memory.indices
            positives, drawable = found[:, n:], None
        else:
            keys = torch.cat([other_view, memory.embeddings])
            key_labels = torch.cat([batch.labels.roll(n // 2, dims=0), memory.labels])
            key_indices = torch.cat([batch.indices.roll(n // 2, dims=0), memory.indices])
            # both views of the query's own image: one is its own positive, added later, the other is itself (j = i)
            own_node = torch.eye(n, dtype=torch.bool, device=teacher.device)
            own_image = own_node | own_node.roll(n // 2, dims=1)
            drawable = ~torch.cat([own_image, own_image.new_zeros(n, len(memory))], dim=1)
            positives = found & drawable
        logs |= self._statistics(positives, batch.indices, key_indices)  # before the labels correct what was mined

        negatives = pairs.sample_negatives(
            positives,
            settings.negatives,
            subtract_positives=recipe.subtract_positives,
            candidates=drawable,
            generator=batch.generator,
        )
        if settings.label_prior:
            positives, negatives = pairs.apply_label_prior(positives, negatives, batch.labels, key_labels)
        if drawable is not None:
            positives, negatives = positives & drawable, negatives & drawable
        return MinedPairs(keys, positives, negatives, logs)

    def _affinity_term(self, token: str, queries: Tensor, teacher: Tensor, mined: MinedPairs | None) -> StepResult:
        """CAL: pull a query to its own teacher embedding and to what was mined for it."""
        if mined is None:
            return StepResult(queries.sum() * 0.0, {})
        n = len(queries)
        uses_own_view = token == "cls" and self.recipe.own_view_positive
        own = teacher if uses_own_view else teacher.roll(n // 2, dims=0)
        always = mined.positives.new_ones(n, 1)
        similarity = torch.cat([(queries * own).sum(dim=1, keepdim=True), queries @ mined.keys.T], dim=1)
        loss = contrastive_loss(
            similarity,
            torch.cat([always, mined.positives], dim=1),
            torch.cat([always, mined.positives | mined.negatives], dim=1),
            self.config.loss.affinity_temperature,
        )
        return StepResult(loss, {"affinity": loss, **mined.logs})

    def _mine(self, queries: Tensor, memory: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Pseudo positives of each query among the nodes [queries; memory], and what there is to log of them."""
        settings = self.config.affinity
        if settings.mining == "knn":
            return pairs.neighbour_positives(queries, memory, self.config.neighbours), {}
        if settings.mining == "ranking":
            return pairs.ranking_positives(queries, memory, settings.ranking_top), {}
        graph = affinity_graph(queries, memory, self.graph_settings)
        return graph.positives, {"threshold": graph.threshold}

    def _statistics(self, positives: Tensor, query_indices: Tensor, key_indices: Tensor) -> dict[str, Tensor]:
        truth = () if self.truth is None else (self.truth[query_indices], self.truth[key_indices], self.n_known)
        return pairs.mining_statistics(positives, *truth)

    def state_dict(self) -> dict[str, Any]:
        return {
            "teacher": self.teacher.state_dict(),
            "memories": {token: memory.state_dict() for token, memory in self.memories.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher.load_state_dict(state["teacher"])
        for token, memory in self.memories.items():
            memory.load_state_dict(state["memories"][token])
