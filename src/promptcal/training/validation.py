"""Which epoch to keep: looks at the network between epochs, without a single hidden label unless told to."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcal.config.schema import Config
from promptcal.data import StreamedView, View
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.metrics import discovery_accuracy, silhouette
from promptcal.models import ClassifierNetwork, DiscoveryNetwork
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed

# what PromptCAL's warm-up and GCD compete on in their papers; all other stages aim at the new classes as well
_JUDGED_BY_KNOWN_CLASSES = ("warmup", "gcd")


class ValidationResult(NamedTuple):
    """What a look found; ``score`` is what the epochs compete on."""

    score: float
    known: float
    silhouette: float

    def logs(self) -> dict[str, float]:
        return {f"validation/{name}": value for name, value in self._asdict().items()}


class Selector:
    """Looks at the validation images: those whose labels were kept back, among the others.

    Images are put into clusters by the network's classifier if it has one, else by semi-supervised k-means.

    ``labels`` are the training labels (-1 where unlabelled or kept back), ``held_out`` the kept-back ones (-1
    elsewhere). Warm-up (and GCD) competes on the accuracy of the kept-back images; every other stage on the mean
    of that and the silhouette of the images predicted as new. With ``truth`` (selection "oracle") the scored images'
    own classes are used instead, as the published release does. Where ``validation`` (a mask) is given, these images
    were held out whole, and only they are scored.
    """

    def __init__(
        self,
        view: View | StreamedView,
        labels: np.ndarray,
        held_out: np.ndarray,
        config: Config,
        truth: np.ndarray | None = None,
        validation: np.ndarray | None = None,
    ) -> None:
        self.view = view
        self.config = config
        self.n_known = int(max(labels.max(initial=-1), held_out.max(initial=-1))) + 1
        validation = np.ones(len(labels), dtype=bool) if validation is None else validation
        chosen = self._choose(labels, held_out, validation)
        self.images = torch.from_numpy(chosen)
        self.labels, self.held_out = labels[chosen], held_out[chosen]
        self.scored = (self.labels < 0) & validation[chosen]
        self.truth = None if truth is None else truth[chosen]

    def _choose(self, labels: np.ndarray, held_out: np.ndarray, validation: np.ndarray) -> np.ndarray:
        """A label of each known class, kept-back labels, then any others as far as allowed; always the same ones."""
        allowed = max(self.config.selection.max_images, 10 * self.config.n_classes)
        order = np.random.default_rng(derive_seed(self.config.seed, "look")).permutation(len(labels))
        labelled = order[labels[order] >= 0]
        one_of_each = labelled[np.unique(labels[labelled], return_index=True)[1]]
        kept_back = order[held_out[order] >= 0][: allowed // 2]
        by_need = np.concatenate([one_of_each, kept_back, order[validation[order]], order])
        first_mention = np.sort(np.unique(by_need, return_index=True)[1])
        return np.sort(by_need[first_mention][:allowed])

    def look(self, network: DiscoveryNetwork, stage: str) -> ValidationResult:
        features = embed(network, self.view, self.images, group=network.group)
        return network.group.on_first(lambda: self._judge(features, network, stage))

    def _judge(self, features: Tensor, network: DiscoveryNetwork, stage: str) -> ValidationResult:
        if isinstance(network, ClassifierNetwork):
            clusters = network.classify(features).argmax(dim=1).cpu().numpy()
        else:
            clusters = self._cluster(features)
        if self.truth is None:
            known = self._kept_back_accuracy(clusters)
            new = self.scored & (clusters >= self.n_known)
        else:
            scored = self.scored & (self.truth >= 0)
            known_classes = np.arange(self.n_known)
            known = discovery_accuracy(self.truth[scored], clusters[scored], known_classes).known
            new = scored & ~np.isin(self.truth, known_classes)
        quality = self._silhouette(features, clusters, new)
        if stage in _JUDGED_BY_KNOWN_CLASSES or self.n_known == self.config.n_classes:
            return ValidationResult(known, known, quality)
        return ValidationResult((known + quality) / 2, known, quality)

    def _cluster(self, features: Tensor) -> np.ndarray:
        settings = self.config.clustering
        kmeans = SemiSupervisedKMeans(
            self.config.n_classes,
            self.config.selection.n_init,
            settings.max_iter,
            settings.tol,
            random_state=derive_seed(self.config.seed, "look", "kmeans"),
        )
        return kmeans.fit(features, self.labels).labels_

    def _kept_back_accuracy(self, clusters: np.ndarray) -> float:
        """A known class's cluster carries its number, so no matching is needed."""
        scored = self.held_out >= 0
        return float((clusters[scored] == self.held_out[scored]).mean())

    @staticmethod
    def _silhouette(features: Tensor, clusters: np.ndarray, new: np.ndarray) -> float:
        chosen = torch.from_numpy(new)
        quality = silhouette(features[chosen], torch.from_numpy(clusters)[chosen].to(features.device))
        return -1.0 if np.isnan(quality) else quality  # nothing that could be called new clusters
