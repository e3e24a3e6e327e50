"""Schemas: the parameters and arrays of an environment on the device, declared once for Python and for CUDA.

    SCHEMA = Schema(
        parameters=(Parameter("num_taggers", "int32"), Parameter("wall_hit_penalty", "float32")),
        fields=(Field("x", "int32", per="agent"), Field("starts", "int32", per="launch", role="const")),
    )

``Schema.declaration`` returns its C++, ``struct Env``, which is declared before the kernel file is included. This file
and those that declare environments import the standard library alone, because setup.py reads them.
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

    dtype: "int32" or "float32". constant: compiled into a kernel for a device, and no part of its arguments.
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
    size: the int32 parameter that is the number of elements for each of them, the k-th at ``e * env.size + k`` or
        ``(e * env.num_agents + a) * env.size + k``; "" for one element.
    role: "state" (an attribute of the reference with this name, which the consistency checker compares), "const" (read
        only; the value of the reference's attribute of this name, pushed once) or "scratch" (has no meaning between two
        launches).
    reset: what the start of an episode does to it. "start": the kernel's ``start`` writes it. "zero": it is zeroed
        before ``start``. "keep": nothing.
    """

    name: str
    dtype: str
    per: str = "agent"
    role: str = "state"
    reset: str = "start"
    size: str = ""

    def __post_init__(self) -> None:
        _check_name("field", self.name)
        allowed_values = {"dtype": DTYPES, "per": PER, "role": ROLES, "reset": RESETS}
        for name, options in allowed_values.items():
            if getattr(self, name) not in options:
                listed = ", ".join(map(repr, options))
                raise ValueError(f"field {self.name}: {name}={getattr(self, name)!r} is not one of {listed}")
        if self.size and self.reset == "zero":
            raise ValueError(f'field {self.name}: a field with a size= cannot have reset="zero"; use "start" or "keep"')
        if (self.per == "launch") != (self.role == "const"):
            raise ValueError(f"field {self.name}: role='const' requires per='launch', and per='launch' role='const'")


def _check_name(kind: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: a name has lower-case letters, digits and _, and begins with a letter")


# The fields of every environment. The reference has attributes of the first three names: the seed passed to `reset`,
# the number of the episode since then, and the steps played in it.
COMMON = (
    Field("seed", "uint32", per="env", reset="keep"),
    Field("episode", "uint32", per="env", reset="keep"),
    Field("t", "int32", per="env", reset="zero"),
    Field("acts", "bool", role="scratch"),  # whether the agent's next action counts
    Field("over", "bool", per="env", role="scratch", reset="zero"),
    Field("episode_return", "float64", role="scratch", reset="zero"),
    # Sums over the episodes that ended since the last request (see pufferlib/vectorization/device/episodes.py).
    Field("ended_episodes", "int64", per="env", role="scratch", reset="keep"),
    Field("ended_steps", "int64", per="env", role="scratch", reset="keep"),
    Field("ended_scores", "float64", per="env", role="scratch", reset="keep"),
    Field("ended_returns", "float64", role="scratch", reset="keep"),
)

# The arguments of a launch, in the order of the struct. Pointers are to the first row of the first slot.
LAUNCH = (
    ("num_envs", "int"),  # of this launch
    ("first_env", "int"),  # if env_ids is null, the launch plays environments first_env, first_env + 1, …
    ("env_ids", "const int*"),
    ("resets", "int"),  # whether all environments start new episodes
    ("seeds", "const unsigned*"),  # with resets: one for each environment of the launch, or null to keep the old ones
    ("autoreset", "int"),  # NEXT_STEP, SAME_STEP or DISABLED
    ("actions", "const void*"),
    ("actions_nbytes", "int"),  # of one action, 4 or 8
    ("observations", "float*"),
    ("rewards", "float*"),
    ("terminations", "bool*"),
    ("truncations", "bool*"),
    ("masks", "bool*"),
    ("returns", "double*"),  # of the agents that ended
    ("lengths", "int*"),  # of the agents that ended
    ("final_observations", "float*"),  # in same_step: the last observations of episodes that ended
    ("first_slot", "int"),  # the slot of the first environment
    ("by_env", "int"),  # slots are numbered as environments are, rather than in the order of the launch
    ("scores", "double*"),  # one a slot: info["score"] of an episode that ended, if the kernel writes one
    ("ended", "bool*"),  # one a slot: whether an episode ended in this step
    ("slot_ids", "long long*"),  # unless null, the environment in each slot
    ("num_steps", "int"),  # to play in this launch
    ("step_slots", "int"),  # slots from a step's rows and actions to those of the next step; 0: it overwrites them
    ("policy", "int"),  # chooses actions before each step: NO_POLICY, LOGITS or NETWORK (see policy.cuh)
    ("policy_logits", "const float*"),  # rows of policy_num_options
    ("policy_masks", "const unsigned char*"),  # rows of the same, 0 for an option that is forbidden; null allows all
    ("policy_nvec", "const int*"),  # the number of options of each choice
    ("policy_num_choices", "int"),  # of an action
    ("policy_num_options", "int"),  # of all its choices together
    ("policy_greedy", "int"),  # whether the likeliest options are chosen
    ("policy_actions", "long long*"),  # rows of the chosen actions, which the step plays
    ("policy_log_probs", "float*"),
    ("policy_entropies", "float*"),
    ("policy_inputs", "const float*"),  # of a network: the observations before the first step, by environment
    ("policy_network", "const float*"),  # the weights of the network
    ("policy_layers", "const int*"),  # the layers of the network (see layers.cuh)
    ("policy_num_layers", "int"),
    ("num_agents", "int"),  # of an environment
    ("observation_size", "int"),  # of an agent
)
CONSTANTS = ("num_agents", "observation_size", "num_steps", "policy")  # names of LAUNCH that may be compiled in


@dataclass(frozen=True)
class Schema:
    """All parameters and fields of an environment. Raises ValueError for repeated names and for unknown sizes."""

    parameters: tuple[Parameter, ...] = ()
    fields: tuple[Field, ...] = ()
    all_fields: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in LAUNCH] + [parameter.name for parameter in self.parameters]
        names += [member.name for member in (*COMMON, *self.fields)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is declared twice, or is a name of every schema; choose another name")
        counts = [parameter.name for parameter in self.parameters if parameter.dtype == "int32"]
        for member in self.fields:
            if member.size and (member.size not in counts or member.per == "launch"):
                raise ValueError(
                    f"field {member.name}: size={member.size!r} is not one of the int32 parameters {counts}"
                )
        object.__setattr__(self, "all_fields", (*COMMON, *self.fields))

    def declaration(self, constants: Mapping[str, int | float] | None = None) -> str:
        """Return the C++ of ``struct Env``. constants: the values to compile in."""
        constants = constants or {}
        typed = [*LAUNCH, *((parameter.name, CTYPES[parameter.dtype]) for parameter in self.parameters)]
        lines = []
        for name, ctype in typed:
            constant = name in constants
            lines.append(f"static constexpr {ctype} {name} = {constants[name]};" if constant else f"{ctype} {name};")
        for member in self.all_fields:
            lines.append(f"{'const ' if member.role == 'const' else ''}{CTYPES[member.dtype]}* {member.name};")
        zeroed = {
            per: [member.name for member in self.all_fields if (member.reset, member.per) == ("zero", per)]
            for per in PER
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
    """An environment that has a kernel: the kernel's file, its schema, and its reference.

    source: path of the .cuh file. reference: "module:attribute" of the environment in NumPy to which the kernel is
        equal; parameters, const fields and state are its attributes of the same names.
    side_by_side: of an environment of one agent, the number of floats that it observes; the host then plays many at
        once with vector instructions. 0: one after another. The host then calls ``step`` also where an episode starts,
        before ``start`` overwrites what it wrote, with any action and any state: ``step`` must not index memory by
        them.
    """

    name: str
    source: str
    reference: str
    schema: Schema
    side_by_side: int = 0
