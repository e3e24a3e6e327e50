"""What an environment keeps on the device: its parameters and arrays, declared once, for Python and for CUDA alike.

    SCHEMA = Schema(
        parameters=(Parameter("num_taggers", "int32"), Parameter("wall_hit_penalty", "float32")),
        fields=(Field("x", "int32", per="agent"), Field("starts", "int32", per="launch", role="const")),
    )

``Schema.declaration`` is the C++ of it, ``struct Env``, which a kernel file finds declared. Nothing but the standard
library is imported here and in the files that declare environments: setup.py reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["COMMON", "CONSTANTS", "CTYPES", "DTYPES", "LAUNCH", "Field", "KernelEnv", "Parameter", "Schema"]

CTYPES = {
    "bool": "bool",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "float32": "float",
    "float64": "double",
}
DTYPES = tuple(CTYPES)
PER = ("agent", "env", "launch")
ROLES = ("state", "const", "scratch")
RESETS = ("start", "zero", "keep")
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Parameter:
    """A number that is the same for all environments; its value is the reference's attribute of this name.

    dtype: "int32" or "float32". constant: known when a kernel is compiled for a device, and no part of its arguments.
    """

    name: str
    dtype: str
    constant: bool = False

    def __post_init__(self) -> None:
        _check_name("parameter", self.name)
        if self.dtype not in ("int32", "float32"):
            raise ValueError(f"parameter {self.name}: dtype={self.dtype!r} is not 'int32' or 'float32'")


@dataclass(frozen=True)
class Field:
    """An array on the device. In a kernel ``env.name`` points to its first element.

    per: "agent" (element ``e * env.num_agents + a``), "env" (element ``e``) or "launch" (one array for all).
    dtype: one of DTYPES.
    size: the int32 parameter that says how many elements one of them has, so that its k-th is element
        ``e * env.size + k``, or ``(e * env.num_agents + a) * env.size + k``; "" for a single one.
    role: "state" (what the reference has under this name too, and the consistency checker compares), "const" (read
        only; its value is the reference's attribute of this name, pushed once) or "scratch" (means nothing between two
        launches).
    reset: what the start of an episode does to it. "start": the kernel's ``start`` writes it. "zero": it is zeroed
        before that. "keep": nothing.
    """

    name: str
    dtype: str
    per: str = "agent"
    role: str = "state"
    reset: str = "start"
    size: str = ""

    def __post_init__(self) -> None:
        _check_name("field", self.name)
        choices = {"dtype": DTYPES, "per": PER, "role": ROLES, "reset": RESETS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                listed = ", ".join(map(repr, known))
                raise ValueError(f"field {self.name}: {name}={getattr(self, name)!r} is not one of {listed}")
        if self.size and self.reset == "zero":
            raise ValueError(f"field {self.name}: what has a size= is reset by the kernel's start, or kept")
        if (self.per == "launch") != (self.role == "const"):
            raise ValueError(f"field {self.name}: what is const is per='launch', and what is per='launch' is const")


def _check_name(kind: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: a name is of small letters, digits and _, and begins with a letter")


# What every environment has. The reference has the state under these names: the seed that `reset` was given, the number
# of the episode since then, and the steps played in it.
COMMON = (
    Field("seed", "uint32", per="env", reset="keep"),
    Field("episode", "uint32", per="env", reset="keep"),
    Field("t", "int32", per="env", reset="zero"),
    Field("acts", "bool", role="scratch"),  # whether the agent's next action counts
    Field("over", "bool", per="env", role="scratch", reset="zero"),
    Field("episode_return", "float64", role="scratch", reset="zero"),
    # Sums over the episodes that have ended since somebody asked (see pufferlib/vectorization/device/episodes.py).
    Field("ended_episodes", "int64", per="env", role="scratch", reset="keep"),
    Field("ended_steps", "int64", per="env", role="scratch", reset="keep"),
    Field("ended_scores", "float64", per="env", role="scratch", reset="keep"),
    Field("ended_returns", "float64", role="scratch", reset="keep"),
)

# What a launch is told, in the order of the struct. Pointers are to the first row of the first slot.
LAUNCH = (
    ("num_envs", "int"),  # of this launch
    ("first_env", "int"),  # where env_ids is null, environments first_env, first_env + 1, …
    ("env_ids", "const int*"),
    ("resets", "int"),  # whether new episodes start, whatever goes on
    ("seeds", "const unsigned*"),  # with resets: one an environment of the launch, or null to go on with the old ones
    ("autoreset", "int"),  # NEXT_STEP, SAME_STEP or DISABLED
    ("actions", "const void*"),
    ("actions_nbytes", "int"),  # of one action, 4 or 8
    ("observations", "float*"),
    ("rewards", "float*"),
    ("terminations", "bool*"),
    ("truncations", "bool*"),
    ("masks", "bool*"),
    ("returns", "double*"),  # where an agent's life ended, its return
    ("lengths", "int*"),  # and its length
    ("final_observations", "float*"),  # in same_step: where an episode ended, its last
    ("first_slot", "int"),  # where the rows of the first environment go
    ("by_env", "int"),  # slots are numbered as environments are, rather than as they come in the launch
    ("scores", "double*"),  # one a slot: info["score"] of an episode that ended, where the kernel writes one
    ("ended", "bool*"),  # one a slot: whether an episode ended in this step
    ("slot_ids", "long long*"),  # where this is no null, the environment in each slot
    ("num_steps", "int"),  # to play in this launch
    ("step_slots", "int"),  # how many slots further the rows of each go, and its actions come from; 0: the same
    ("policy", "int"),  # what chooses actions in front of each step: NO_POLICY, LOGITS or NETWORK (see policy.cuh)
    ("policy_logits", "const float*"),  # rows of so many options as all choices of an action have together
    ("policy_masks", "const unsigned char*"),  # rows of these, 0 for an option that is not allowed; null allows all
    ("policy_nvec", "const int*"),  # the options of each choice
    ("policy_num_choices", "int"),  # of an action
    ("policy_num_options", "int"),  # of all its choices
    ("policy_greedy", "int"),  # whether the likeliest are chosen
    ("policy_actions", "long long*"),  # rows of what is chosen, which are the step's actions
    ("policy_log_probs", "float*"),
    ("policy_entropies", "float*"),
    ("policy_inputs", "const float*"),  # of a network: what was observed before the first step, by environment
    ("policy_network", "const float*"),  # its weights, and
    ("policy_layers", "const int*"),  # its layers (see layers.cuh)
    ("policy_num_layers", "int"),
    ("num_agents", "int"),  # of an environment
    ("observation_size", "int"),  # of an agent
)
CONSTANTS = ("num_agents", "observation_size", "num_steps", "policy")  # of LAUNCH, those that may be compiled in


@dataclass(frozen=True)
class Schema:
    """All of an environment's parameters and fields. Raises ValueError for what fits no other."""

    parameters: tuple[Parameter, ...] = ()
    fields: tuple[Field, ...] = ()
    all_fields: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in LAUNCH] + [each.name for each in self.parameters]
        names += [each.name for each in (*COMMON, *self.fields)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is declared twice, or what every environment has; choose another name")
        counts = [each.name for each in self.parameters if each.dtype == "int32"]
        for each in self.fields:
            if each.size and (each.size not in counts or each.per == "launch"):
                raise ValueError(f"field {each.name}: size={each.size!r} is not one of the int32 parameters {counts}")
        object.__setattr__(self, "all_fields", (*COMMON, *self.fields))

    def declaration(self, constants: Mapping[str, int | float] | None = None) -> str:
        """Return the C++ of ``struct Env``. constants: values of what is to be known when it is compiled."""
        constants = constants or {}
        typed = [*LAUNCH, *((each.name, CTYPES[each.dtype]) for each in self.parameters)]
        lines = []
        for name, ctype in typed:
            known = name in constants
            lines.append(f"static constexpr {ctype} {name} = {constants[name]};" if known else f"{ctype} {name};")
        for each in self.all_fields:
            lines.append(f"{'const ' if each.role == 'const' else ''}{CTYPES[each.dtype]}* {each.name};")
        zeroed = {
            per: [each.name for each in self.all_fields if (each.reset, each.per) == ("zero", per)] for per in PER
        }
        for_env = "".join(f" env.{name}[e] = 0;" for name in zeroed["env"])
        for_agent = "".join(f" env.{name}[i] = 0;" for name in zeroed["agent"])
        return "\n".join(
            [
                "struct Env {",
                *(f"    {line}" for line in lines),
                "};",
                f"__device__ __forceinline__ void zero_env(const Env& env, int e) {{{for_env} }}",
                f"__device__ __forceinline__ void zero_agent(const Env& env, int i) {{{for_agent} }}",
                "",
            ]
        )


@dataclass(frozen=True)
class KernelEnv:
    """An environment that has a kernel: what is in ``<stem>.cuh``, what that is declared to hold, and its reference.

    source: path of the .cuh file. reference: "module:attribute" of the environment in NumPy whose twin this is;
        parameters, const fields and state are its attributes of the same names.
    side_by_side: of environments of one agent, how many floats it observes, for the host to play many of them at once,
        with instructions for many; 0: one after another. ``step`` is then called, too, where an episode starts, and
        ``start`` writes over what it wrote: it is given any action and any state, and looks nothing up by them.
    """

    name: str
    source: str
    reference: str
    schema: Schema
    side_by_side: int = 0
