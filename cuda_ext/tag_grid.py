"""The schema of the tag/grid kernel; its NumPy reference, references/tag_grid.py, defines the rules."""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="tag/grid",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.tag_grid:TagGrid",
    schema=Schema(
        parameters=(
            Parameter("num_taggers", "int32", constant=True),
            Parameter("num_nearest", "int32", constant=True),
            Parameter("full_observation", "int32", constant=True),
            Parameter("grid_length", "int32"),
            Parameter("episode_length", "int32"),
            Parameter("wall_hit_penalty", "float32"),
            Parameter("tag_reward_for_tagger", "float32"),
            Parameter("tag_penalty_for_runner", "float32"),
            Parameter("step_cost_for_tagger", "float32"),
            Parameter("num_layouts", "int32"),  # layouts to start from; 0: each episode draws its own
        ),
        fields=(
            Field("x", "int32"),
            Field("y", "int32"),
            Field("alive", "bool"),  # False for a runner that was tagged
            Field("tagged", "int32", role="scratch"),  # the number of taggers on a runner's cell
            Field("layouts", "int32", per="launch", role="const"),  # (num_layouts, num_agents, 2)
        ),
    ),
)
