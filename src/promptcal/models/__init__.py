"""Networks: a prompted ViT, projection heads, classifiers, and a teacher (a moving average of the student)."""

from promptcal.models.backbones import EMBEDDED_BACKBONE, create_backbone, preprocessing
from promptcal.models.classifier import ClassifierNetwork, CosineNetwork
from promptcal.models.head import CosineClassifier, DINOHead, projected_cosine
from promptcal.models.network import DiscoveryNetwork, ProjectionNetwork, TokenOutput
from promptcal.models.prompted_vit import PromptedViT
from promptcal.models.teacher import Teacher
from promptcal.models.weights import load_weights

__all__ = [
    "EMBEDDED_BACKBONE",
    "ClassifierNetwork",
    "CosineClassifier",
    "CosineNetwork",
    "DINOHead",
    "DiscoveryNetwork",
    "ProjectionNetwork",
    "PromptedViT",
    "Teacher",
    "TokenOutput",
    "create_backbone",
    "load_weights",
    "preprocessing",
    "projected_cosine",
]
