"""The interface of a method: everything that the pipeline asks of one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from rich.console import Console
from torch import Tensor

from promptcal.config import Config
from promptcal.data import ImageSet, View
from promptcal.methods.assignment import Assignment, ClassifierAssignment, HeadAssignment, KMeansAssignment
from promptcal.models import ClassifierNetwork, DiscoveryNetwork, ProjectionNetwork, PromptedViT, load_weights
from promptcal.runtime.free_memory import check_sizes
from promptcal.runtime.seeds import derive_seed
from promptcal.training.embedding import embed_images
from promptcal.training.stage import Stage

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class StageContext:
    """What a stage may use besides the config and the network.

    Attributes:
        n_known: Number of known classes.
        truth: Class number of each image (known classes first, -1 = unknown), for statistics only.
        is_resumed: Whether the stage continues from a checkpoint.
        is_continued: Whether the weights come from a previous run (`--from`).
        centroids: Runs k-means with the network's current weights, and returns the centroids (clusters x dim).
        load_images: Returns views of the images in another folder.
        unlabelled_features: Returns the L2-normalised embeddings of all unlabelled training images by the network's
            current weights (images x dim); all processes of a group must call it.
    """

    n_known: int
    truth: Tensor | None
    is_resumed: bool
    is_continued: bool
    centroids: Callable[[], Tensor]
    load_images: Callable[[str], View]
    unlabelled_features: Callable[[], Tensor]


class Method(ABC, Generic[C]):
    """A way to learn the categories. A subclass names itself, its settings, its network and its stages.

    Args:
        config: The settings of the run, of type ``config_class``.

    Attributes:
        name: Name on the command line.
        title: Name for people.
        stage_titles: Names of the stages for people, if there are several.
        config_class: Subclass of `Config` with the method's sections.
        presets: The method's own values under "", which a preset may change, and under the name of a preset values that
            win over that preset's.
        variants: Settings that ``variant=NAME`` selects, by name.
        fit_variant: The variant that `fit` uses by default.
        published: Settings of the protocol of the method's publication; by default all labels are trained on and the
            last epoch is kept.
        trains: Whether anything is trained at all.
        takes_images: Whether its inputs are images, and not features of another model.
        uses_generic_images: Whether it uses the folder `data.generic_images`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    stage_titles: ClassVar[Mapping[str, str]] = {}
    config_class: ClassVar[type[Config]] = Config
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"official": {}}
    fit_variant: ClassVar[str] = "official"
    published: ClassVar[Mapping[str, Any]] = {"selection": {"by": "last"}}
    trains: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    uses_generic_images: ClassVar[bool] = False

    def __init__(self, config: C) -> None:
        self.config = config

    def build(self, n_known: int, *, pretrained: bool) -> Any:
        """The whole network.

        Args:
            n_known: Number of known classes.
            pretrained: Whether to load the backbone's weights; otherwise they are random, to be loaded later.

        Returns:
            The network, by default what `build_network` returns.
        """
        return build_network(self, build_vit(self, pretrained=pretrained), n_known)

    def embed(
        self, network: Any, inputs: Any, *, resize: int, skip_unreadable: bool, console: Console
    ) -> tuple[list[str], Tensor]:
        """Embed new inputs.

        Args:
            network: The trained network.
            inputs: What the user gives, such as a folder of images.
            resize: Shorter side in pixels to which images are resized before the crop.
            skip_unreadable: Whether to skip images that cannot be read.
            console: Where to show progress.

        Returns:
            Names (n), and L2-normalised embeddings (n x dim).
        """
        images = ImageSet.of(inputs)
        kept, features = embed_images(network.vit, images, resize, skip_unreadable=skip_unreadable, console=console)
        return [images.names[i] for i in kept], features

    def build_vit(self, *, pretrained: bool) -> PromptedViT:
        """The backbone with prompts.

        Args:
            pretrained: Whether to load its weights; otherwise they are random, to be loaded later.

        Returns:
            The ViT with the settings of the section `model`.
        """
        model = self.config.model
        vit = PromptedViT(
            model.backbone,
            model.prompts,
            model.supervised_prompts,
            train_blocks=model.train_blocks,
            image_size=model.image_size,
            pretrained=pretrained and model.pretrained and model.weights is None,
            prompt_pooling=self.prompt_pooling,
        )
        if pretrained and model.weights is not None:
            load_weights(vit, model.weights)
        return vit

    @property
    def prompt_pooling(self) -> str:
        """How the supervised prompts become one embedding."""
        return "mean"

    def build_network(self, vit: PromptedViT, n_known: int) -> DiscoveryNetwork:
        """What is trained.

        Args:
            vit: The backbone.
            n_known: Number of known classes.

        Returns:
            The network; by default the ViT with a projection head for each token.
        """
        return ProjectionNetwork(vit, **self.head_sizes())

    def head_sizes(self) -> dict[str, int]:
        """The widths of a projection head, by their names in `ProjectionNetwork`."""
        return {size: getattr(self.config.model, f"head_{size}") for size in ("hidden", "bottleneck", "prototypes")}

    def memory_needs(self, vit: PromptedViT, n_images: int, processes: int) -> dict[str, float]:
        """Memory that training takes at least, which is compared with the free memory.

        Args:
            vit: The backbone.
            n_images: Number of training images.
            processes: Number of processes.

        Returns:
            Bytes in each process, by the settings to lower.
        """
        side, tokens = vit.preprocessing.image_size, vit.backbone.patch_embed.num_patches
        views = 2 * self.config.data.batch_size / processes
        return {"data.batch_size and model.image_size": 4 * views * (3 * side**2 + tokens * vit.dim)}

    def epochs(self) -> dict[str, int]:
        """Epochs by stage, in order; a stage of 0 epochs is left out. By default one stage with the method's name."""
        return {self.name: self.config.optim.epochs} if self.trains else {}

    @abstractmethod
    def stage(self, name: str, network: Any, context: StageContext) -> Stage:
        """The stage to train next.

        Args:
            name: A key of `epochs`.
            network: What `build_network` returned, with the best weights of the previous stage.
            context: What the stage may use besides.

        Returns:
            The stage with its loss.
        """

    def parameter_groups(self, network: DiscoveryNetwork) -> list[dict[str, Any]]:
        """The optimiser's parameter groups.

        Args:
            network: What is trained.

        Returns:
            Groups as `torch.optim` takes them; a group may set its own ``weight_decay`` and ``lr_scale``.
        """
        return [{"params": list(network.trained_parameters().values())}]

    def augment(self, views: Tensor, generator: torch.Generator) -> Tensor:
        """Change a batch of views before the stage sees it.

        Args:
            views: Normalised random crops, flipped half of the time (2B x 3 x side x side).
            generator: Source of all random numbers, so that a resumed run draws the same.

        Returns:
            Views of the same shape.
        """
        return views

    def validation_score(self, stage: str, known: float, silhouette: float) -> float:
        """The score of an epoch; the epoch with the largest score is kept.

        Args:
            stage: Name of the stage.
            known: Accuracy on held-out labels, from 0 to 1.
            silhouette: Silhouette of the images predicted as new, from -1 to 1.

        Returns:
            The score.
        """
        return (known + silhouette) / 2

    def first_stage_settings(self) -> dict[str, Any] | None:
        """The settings that two runs must share to share their first stage; None if it cannot be shared."""
        return None

    @classmethod
    def first_stage_weights(cls, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the first stage trains; the others are those of later stages.

        Args:
            weights: All weights by name.

        Returns:
            A part of them.
        """
        return weights

    def assignment(self, network: Any) -> Assignment:
        """How embeddings become clusters.

        Args:
            network: The trained network.

        Returns:
            By default k-means or a trained head, as `clustering.readout` says.
        """
        if self.config.clustering.readout == "head":
            return HeadAssignment()
        return KMeansAssignment(self.config.loss.affinity_temperature)


class ClassifierMethod(Method[C]):
    """A method of one stage with a classifier.

    Args:
        config: The settings of the run.

    Attributes:
        network_class: Called with the ViT and the config; returns a `ClassifierNetwork`.
        stage_class: Called with the name, the network and the config; returns the stage.
    """

    network_class: ClassVar[type[Any]]
    stage_class: ClassVar[type[Stage]]

    def build_network(self, vit: PromptedViT, n_known: int) -> ClassifierNetwork:
        return self.network_class(vit, self.config)

    def stage(self, name: str, network: ClassifierNetwork, context: StageContext) -> Stage:
        return self.stage_class(name, network, self.config)

    def assignment(self, network: ClassifierNetwork) -> Assignment:
        return ClassifierAssignment(network)


@dataclass(frozen=True)
class SeededViT:
    """A ViT, and the state of the random generator after it was built, from which the heads are drawn."""

    vit: PromptedViT
    rng_state: Tensor


def build_vit(method: Method[Any], *, pretrained: bool) -> SeededViT:
    """The method's ViT. Its random parts depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(method.config.seed, "network"))
        return SeededViT(method.build_vit(pretrained=pretrained), torch.get_rng_state())


def build_network(method: Method[Any], seeded: SeededViT, n_known: int) -> DiscoveryNetwork:
    """The method's network on a ViT. Its random parts depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # only the shapes of the heads
            shapes = method.build_network(seeded.vit, n_known).parameters()
        size = sum(p.numel() * p.element_size() for p in shapes if p.is_meta)
        check_sizes({"the sizes of the heads (model.head_...), or n_classes": size}, torch.device("cpu"))
        torch.set_rng_state(seeded.rng_state)
        return method.build_network(seeded.vit, n_known)


def trained_stages(method: Method[Any], *, only_last: bool) -> list[str]:
    """The stages that train for at least one epoch, in order."""
    return [name for name, epochs in list(method.epochs().items())[-1 if only_last else 0 :] if epochs]
