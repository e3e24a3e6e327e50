"""tag/continuous as a kernel. The rules are in references/tag_continuous.py, its twin in NumPy.

The nearest are looked for in a grid of cells (cells.cuh), from 33 agents to 2,048; fewer, or more, look at all. Taggers
look at all: with one tagger among 20 agents a grid of taggers took longer to make than it saved.
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
            Parameter("squared_reach", "float32"),  # of a tagger
            Parameter("edge_hit_penalty", "float32"),
            Parameter("tag_reward_for_tagger", "float32"),
            Parameter("tag_penalty_for_runner", "float32"),
            Parameter("step_penalty_for_tagger", "float32"),
            Parameter("step_reward_for_runner", "float32"),
            Parameter("end_of_game_reward_for_runner", "float32"),
            Parameter("runner_exits_game_after_tagged", "int32"),
            Parameter("num_layouts", "int32"),  # to start from; 0: each episode has one of its own
        ),
        fields=(
            Field("x", "float32"),
            Field("y", "float32"),
            Field("speed", "float32", reset="zero"),
            Field("direction", "float32"),
            Field("acceleration", "float32", reset="zero"),
            Field("alive", "bool"),  # whether a runner has not left
            Field("tags", "int32", role="scratch"),  # of a tagger in this step; whether a runner was tagged
            Field("accelerations", "float32", per="launch", role="const"),  # by action
            Field("turns", "float32", per="launch", role="const"),
            Field("layouts", "float32", per="launch", role="const"),  # (num_layouts, num_agents, 3)
        ),
    ),
)
