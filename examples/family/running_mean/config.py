"""The settings of the model."""

from mentalese import LatentThoughtConfig


class RunningMeanConfig(LatentThoughtConfig):
    model_type = "running_mean"
