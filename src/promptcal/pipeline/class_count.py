"""The number of classes of images: embedded, then counted. `estimate-classes` and `fit --n-classes auto` do this."""

from rich.console import Console

from promptcal.config.schema import Config
from promptcal.discovery.class_count import EXPECTED_TRIALS, ClassCount, Trial, count_classes
from promptcal.models import PromptedViT
from promptcal.pipeline.problem import Problem
from promptcal.run.inference import Run, RunDirectory, build_vit, embed_in_parts, stored_side
from promptcal.runtime.device import choose_device, choose_dtype
from promptcal.runtime.progress import progress_bar
from promptcal.runtime.seeds import derive_seed


def count_in_backbone(problem: Problem, config: Config, *, skip_unreadable: bool, console: Console) -> ClassCount:
    """In the embeddings of the backbone as it came."""
    device = choose_device(config.device)
    vit = PromptedViT(build_vit(config, pretrained=True).backbone, prompts=0).to(device).eval()
    vit.set_compute_dtype(choose_dtype(config.precision, device))
    return _count(problem, config, vit, stored_side(config, vit), skip_unreadable, console)


def count_in_run(problem: Problem, run: Run, config: Config, *, skip_unreadable: bool, console: Console) -> ClassCount:
    """In the embeddings of a finished run's network."""
    return _count(problem, config, run.network.vit, run.info["resize"], skip_unreadable, console)


def _count(
    problem: Problem, config: Config, vit: PromptedViT, resize: int, skip_unreadable: bool, console: Console
) -> ClassCount:
    kept, features = embed_in_parts(vit, problem.images, resize, skip_unreadable=skip_unreadable, console=console)
    settings = config.estimation
    with progress_bar(console) as bar:
        task = bar.add_task("counting classes", total=EXPECTED_TRIALS, note="")

        def show(trial: Trial) -> None:
            bar.update(task, advance=1, note=f"{trial.n_classes} classes: {100 * trial.accuracy:.1f} %")

        count = count_classes(
            features,
            problem.labels[kept],
            max_classes=settings.max_classes,
            n_init=settings.n_init,
            max_iter=config.clustering.max_iter,
            tol=config.clustering.tol,
            seed=derive_seed(config.seed, "class count"),
            on_trial=show,
        )
        bar.update(task, total=len(count.trials), completed=len(count.trials))
    return count


class ClassCounter:
    """Asked for a number of classes by `load_config`; a resumed run has its number already."""

    def __init__(
        self, problem: Problem, resumed: RunDirectory | None, *, skip_unreadable: bool, console: Console
    ) -> None:
        self.problem = problem
        self.resumed = resumed
        self.skip_unreadable = skip_unreadable
        self.console = console
        self.count: ClassCount | None = None

    def __call__(self, config: Config) -> int:
        if self.resumed is not None:
            return self.resumed.config().n_classes
        self.problem.check(max(1, len(self.problem.classes)))
        self.count = count_in_backbone(self.problem, config, skip_unreadable=self.skip_unreadable, console=self.console)
        return self.count.n_classes
