"""Calibrated confidence of a result, by labels that neither training nor the read-out used where there are any."""

import numpy as np
from torch import Tensor

from promptcal.data.splits import hold_out
from promptcal.discovery.calibration import Calibration, calibrate_run
from promptcal.discovery.partition import Partition
from promptcal.methods.assignment import Assignment

_LEFT_OUT_SHARE = 0.2  # of the labels, if none were held out


def calibrate_result(
    assignment: Assignment,
    features: Tensor,
    partition: Partition,
    labels: np.ndarray,
    held_out: np.ndarray,
    *,
    labels_in_centroids: bool,
) -> Calibration:
    """``held_out`` has the labels that were held out from training, -1 elsewhere; others: see `Assignment`."""
    left_out = held_out
    if assignment.trains_readout and not (held_out >= 0).any():
        left_out = np.where(hold_out(labels, _LEFT_OUT_SHARE, 0), labels, -1)
    outputs = assignment.outputs_by_labels(features, partition, np.where(left_out >= 0, -1, labels))
    return calibrate_run(
        features,
        partition,
        labels,
        held_out,
        left_out,
        outputs=None if outputs is None else lambda rows: outputs(features[rows]),
        labels_in_centroids=labels_in_centroids,
        temperature=assignment.temperature,
    )
