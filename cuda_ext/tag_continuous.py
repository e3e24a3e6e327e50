"""The schema of the tag/continuous kernel; its NumPy reference, references/tag_continuous.py, defines the rules.

With 33 to 2,048 agents, the kernel finds the nearest agents in a grid of cells (cells.cuh); with fewer or more, it
compares all agents. It always finds the nearest tagger by comparing all taggers: in a measurement with one tagger among
20 agents, building a grid of taggers took more time than it saved.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema

KERNEL = KernelEnv(
    name="tag/continuous",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.tag_continuous:TagContinuous",
    schema=Schema(
        parameters=(
            Parameter("num_taggers", "int32", constant=True),
            Parameter("num_nearest", "int32", constant=True),
            Parameter("full_observation", "int32", constant=True),
            Parameter("grid_length", "float32"),
            Parameter("diagonal", "float32"),
            Parameter("episode_length", "int32"),
            Parameter("max_speed", "float32"),
            Parameter("top_speed_tagger", "float32"),
            Parameter("top_speed_runner", "float32"),
            Parameter("num_accelerations", "int32"),
            Parameter("num_turns", "int32"),
            Parameter("squared_reach", "float32"),  # a tagger's
            Parameter("edge_hit_penalty", "float32"),
            Parameter("tag_reward_for_tagger", "float32"),
            Parameter("tag_penalty_for_runner", "float32"),
            Parameter("step_penalty_for_tagger", "float32"),
            Parameter("step_reward_for_runner", "float32"),
            Parameter("end_of_game_reward_for_runner", "float32"),
            Parameter("runner_exits_game_after_tagged", "int32"),
            Parameter("num_layouts", "int32"),  # layouts to start from; 0: each episode draws its own
        ),
        fields=(
            Field("x", "float32"),
            Field("y", "float32"),
            Field("speed", "float32", reset="zero"),
            Field("direction", "float32"),
            Field("acceleration", "float32", reset="zero"),
            Field("alive", "bool"),  # False for a runner that has left
            Field("tags", "int32", role="scratch"),  # in this step: a tagger's number of tags, 1 for a tagged runner
            Field("accelerations", "float32", per="launch", role="const"),  # by action
            Field("turns", "float32", per="launch", role="const"),
            Field("layouts", "float32", per="launch", role="const"),  # (num_layouts, num_agents, 3)
        ),
    ),
)
