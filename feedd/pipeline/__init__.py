"""The only room where stages meet: source → cache → decode → batch, driven by the plan, for any number of sessions.

The floor for a batch of n rows: one vector gather over the shard indexes, one layout, one message to the workers per
chunk of rows. No per-sample Python runs here, and the bytes are touched by the workers alone.
"""

from feedd.pipeline.opening import Pipeline
from feedd.pipeline.run import open_pipeline
from feedd.pipeline.stages import PipelineOptions, Stages

__all__ = ["Pipeline", "PipelineOptions", "Stages", "open_pipeline"]
