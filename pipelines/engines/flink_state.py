"""What a Flink cluster keeps of an endless job, made small enough to last."""

from collections.abc import Iterator
from contextlib import contextmanager

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
)


@contextmanager
def few_key_groups(options: PipelineOptions) -> Iterator[None]:
    """Give a job as many key groups as parallel tasks, unless the options say how many.

    Up to version 2.75 Beam registers a state for each poll of a lane and drops none, and Flink
    makes a table a key group for each: 41 kB with its default of 128 groups for two tasks.
    The options are the caller's, who may run advances with them.
    """
    flink = options.view_as(FlinkRunnerOptions)
    asked = flink.max_parallelism
    is_flink = options.view_as(StandardOptions).runner == "FlinkRunner"
    if is_flink and asked < 1 <= flink.parallelism:
        flink.max_parallelism = flink.parallelism
    try:
        yield
    finally:
        flink.max_parallelism = asked
