"""Schemas, which declare an environment's parameters and its arrays on the device, once for both Python and CUDA.

    SCHEMA = Schema(
        parameters=(Parameter("num_taggers", "int32"), Parameter("wall_hit_penalty", "float32")),
        fields=(Field("x", "int32", per="agent"), Field("starts", "int32", per="launch", role="const")),
    )

``Schema.declaration`` returns the C++ of ``struct Env``, which precedes the kernel file in a program for the host;
staging.py returns it for a device. This file imports only the standard library, and files that declare environments
import only this one, because setup.py imports them all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["COMMON", "CONSTANTS", "CTYPES", "DTYPES", "LAUNCH", "Field", "KernelEnv", "Parameter", "Schema"]

CTYPES = {
    "bool": "bool",
    "uint8": "unsigned char",
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
    """A number that all environments share. The NumPy reference has it as an attribute of the same name.

    dtype: "int32" or "float32". constant: whether to compile the value into a device's kernel, instead of passing it
    as an argument. Raises ValueError for an invalid name or dtype.
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
    """An array on the device. In a kernel, ``env.<name>`` points to its first element.

    per: "agent" (agent a of environment e has element ``e * env.num_agents + a``), "env" (environment e has element
        ``e``) or "launch" (all environments share the array).
    dtype: one of DTYPES.
    size: the name of an int32 parameter whose value S is the number of elements per environment or agent. Element k
        is at ``e * S + k`` or ``(e * env.num_agents + a) * S + k``. "": one element.
    role: "state" (compared by ``check_kernel`` with the reference's attribute of the same name), "const" (read-only;
        the value of the reference's attribute, copied once) or "scratch" (not meaningful between two launches).
    reset: what happens at the start of an episode. "start": the kernel's ``start`` writes the field. "zero": the field
        is zeroed before ``start``. "keep": the field is left as it is.

    Raises ValueError for an invalid value, for a field with a ``size`` and reset="zero", and for a field that has only
    one of role="const" and per="launch", which require each other.
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
    ("num_envs", "int"),  # in this launch
    ("first_env", "int"),  # if env_ids is null, the launch plays environments first_env, first_env + 1, …
    ("env_ids", "const int*"),
    ("resets", "int"),  # whether all environments start new episodes
    ("seeds", "const unsigned*"),  # with resets: a seed per environment of the launch, or null to keep the old seeds
    ("autoreset", "int"),  # NEXT_STEP, SAME_STEP or DISABLED
    ("actions", "const void*"),
    ("actions_nbytes", "int"),  # of a component of an action: 4 or 8, and 4 of a number
    ("observations", "float*"),
    ("rewards", "float*"),
    ("terminations", "bool*"),
    ("truncations", "bool*"),
    ("masks", "bool*"),
    ("returns", "double*"),  # of the agents that ended
    ("lengths", "int*"),  # of the agents that ended
    ("final_observations", "float*"),  # in same_step: the last observations of episodes that ended
    ("first_slot", "int"),  # the slot of the first environment
    ("by_env", "int"),  # whether slots are numbered as environments are, rather than in the order of the launch
    ("scores", "double*"),  # one per slot: info["score"] of an episode that ended, if the kernel writes one
    ("ended", "bool*"),  # one per slot: whether an episode ended in this step
    ("slot_ids", "long long*"),  # unless null, the environment in each slot
    ("num_steps", "int"),  # to play in this launch
    ("step_slots", "int"),  # slots from a step's rows and actions to those of the next step; 0: it overwrites them
    ("policy", "int"),  # chooses actions before each step: NO_POLICY, LOGITS or NETWORK (see policy.cuh)
    ("policy_logits", "const float*"),  # rows of policy_num_options
    ("policy_masks", "const unsigned char*"),  # rows of policy_num_options, 0 for forbidden options; null allows all
    ("policy_nvec", "const int*"),  # the number of options of each choice
    ("policy_num_choices", "int"),  # per action
    ("policy_num_options", "int"),  # in total over the choices of an action; or the numbers of an action
    ("policy_greedy", "int"),  # whether the likeliest options are chosen
    ("policy_actions", "void*"),  # rows of the chosen actions, which the step plays: long long, or float for numbers
    ("policy_log_std", "const float*"),  # of numbers: the logarithms of their standard deviations
    ("policy_centers", "const float*"),  # of numbers: those that 0 stands for, the middle between the bounds
    ("policy_spans", "const float*"),  # of numbers: the distances from there to the bounds, for which 1 stands
    ("policy_log_probs", "float*"),
    ("policy_entropies", "float*"),
    ("policy_inputs", "const float*"),  # a network's inputs before the first step: observations by environment
    ("policy_network", "const float*"),  # the weights of the network
    ("policy_layers", "const int*"),  # the layers of the network (see layers.cuh)
    ("policy_num_layers", "int"),
    ("num_agents", "int"),  # per environment
    ("observation_size", "int"),  # floats per agent
    ("num_continuous", "int"),  # numbers in an action; 0 if an action consists of choices
)
# Names of LAUNCH that may be compiled in.
CONSTANTS = ("num_agents", "observation_size", "num_continuous", "num_steps", "policy")


@dataclass(frozen=True)
class Schema:
    """An environment's parameters and fields.

    all_fields: the fields that every environment has, then ``fields``. Raises ValueError for a name that is declared
    twice or that every schema has, and for a field with a ``size`` if that is not the name of an int32 parameter or if
    the field is per="launch".
    """

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

    def declaration(self) -> str:
        """Return the C++ of ``struct Env``, which is the argument of a launch on the host, and of ``zeroing``."""
        lines = ["struct Env {", *(f"    {line}" for line in self.members({})), "};", *self.zeroing(()), ""]
        return "\n".join(lines)

    def members(self, constants: Mapping[str, int | float]) -> Iterator[str]:
        """Yield the C++ of a launch's arguments. constants: the values to compile in, keyed by name."""
        for name, ctype in (*LAUNCH, *((parameter.name, CTYPES[parameter.dtype]) for parameter in self.parameters)):
            constant = name in constants
            yield f"static constexpr {ctype} {name} = {constants[name]};" if constant else f"{ctype} {name};"
        for member in self.all_fields:
            yield f"{'const ' if member.role == 'const' else ''}{CTYPES[member.dtype]}* {member.name};"

    def zeroing(self, in_registers: Collection[str]) -> list[str]:
        """Return the C++ of the functions that zero an environment's and an agent's fields.

        in_registers: the names of the fields of which each thread has its own copy.
        """
        zeroed = [(member.name, member.per) for member in self.all_fields if member.reset == "zero"]
        of_threads = "".join(f" env.{name}[e] = 0;" for name, per in zeroed if per == "env" and name in in_registers)
        of_env = "".join(f" env.{name}[e] = 0;" for name, per in zeroed if per == "env" and name not in in_registers)
        of_agent = "".join(f" env.{name}[i] = 0;" for name, per in zeroed if per == "agent")
        inline = "__device__ __forceinline__ void"
        return [
            f"{inline} zero_env(const Env& env, int e, int rank) {{{of_threads} if (rank == 0) {{{of_env} }} }}",
            f"{inline} zero_agent(const Env& env, int i) {{{of_agent} }}",
        ]


@dataclass(frozen=True)
class KernelEnv:
    """An environment that has a kernel: the kernel's file, its schema, and its reference.

    source: the path of the .cuh file.
    reference: "module:attribute" of the NumPy environment that the kernel matches. The environment has an attribute of
        the same name for each parameter, const field and state field.
    side_by_side: 0 or, for an environment with one agent, the number of floats in an observation. If not 0, the host
        plays many environments at once with vector instructions. It then calls ``step`` even for environments that
        start an episode, with arbitrary actions and state, before ``start`` overwrites the result. ``step`` must
        therefore use neither actions nor state as an index.
    """

    name: str
    source: str
    reference: str
    schema: Schema
    side_by_side: int = 0
