"""tag/continuous as a kernel. Its reference in NumPy, references/tag_continuous.py, has the rules.

From 33 to 2,048 agents the nearest are searched in a grid of cells (cells.cuh); with fewer or more, among all agents.
The nearest tagger is searched among all taggers: with one tagger among 20 agents, building a grid of taggers took
longer than it saved.
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
            Parameter("num_layouts", "int32"),  # to start from; 0: each episode draws its own
        ),
        fields=(
            Field("x", "float32"),
            Field("y", "float32"),
            Field("speed", "float32", reset="zero"),
            Field("direction", "float32"),
            Field("acceleration", "float32", reset="zero"),
            Field("alive", "bool"),  # False for a runner that has left
            Field("tags", "int32", role="scratch"),  # of a tagger in this step; whether a runner was tagged
            Field("accelerations", "float32", per="launch", role="const"),  # by action
            Field("turns", "float32", per="launch", role="const"),
            Field("layouts", "float32", per="launch", role="const"),  # (num_layouts, num_agents, 3)
        ),
    ),
)
