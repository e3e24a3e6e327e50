"""The schema of the economy/covid kernel; its NumPy reference, references/economy_covid.py, defines the rules.

An environment's state takes 4.7 kB: the unemployment of 600 days of policies is kept as five decaying sums a state, and
the levels of the last 29 days, which the transmission lags behind, as bytes.
"""

from cuda_ext.schema import Field, KernelEnv, Parameter, Schema


def _of_states(name: str, dtype: str = "float32", role: str = "state", size: str = "num_states") -> Field:
    return Field(name, dtype, per="env", role=role, size=size)


def _constant(name: str, dtype: str = "float32") -> Field:
    return Field(name, dtype, per="launch", role="const")


KERNEL = KernelEnv(
    name="economy/covid",
    source=__file__.replace(".py", ".cuh"),
    reference="cuda_ext.references.economy_covid:EconomyCovid",
    schema=Schema(
        parameters=(
            Parameter("num_states", "int32", constant=True),  # of the country
            Parameter("num_sums", "int32", constant=True),
            Parameter("num_past_levels", "int32", constant=True),
            Parameter("episode_length", "int32"),
            Parameter("action_cooldown", "int32"),
            Parameter("subsidy_interval", "int32"),
            Parameter("first_vaccines", "int32"),
            Parameter("enforce_masks", "int32"),
            Parameter("clip_transmission", "int32"),
        ),
        fields=(
            *(_of_states(name) for name in ("susceptible", "infected", "recovered", "vaccinated", "unemployed")),
            _of_states("product"),
            _of_states("memory", size="num_sums"),  # (5, states)
            _of_states("levels", "uint8", size="num_past_levels"),  # (29, states): day t is in line t % 29
            _of_states("bound_until", "int32"),
            Field("subsidy_level", "int32", per="env"),
            # Of a step: the level that determines the transmission, the change of level, new deaths
            *(_of_states(name, role="scratch") for name in ("lagged", "change")),
            _of_states("new_deaths", "float64", role="scratch"),
            *(_constant(f"start_{name}") for name in ("susceptible", "infected", "recovered", "unemployed", "memory")),
            _constant("start_levels", "uint8"),
            *(_constant(name) for name in ("population", "transmission_intercept", "transmission_slope")),
            *(_constant(name) for name in ("unemployment_bias", "doses", "most_product")),
            *(_constant(name, "float64") for name in ("per_person", "percent", "decay", "cut", "filter_weights")),
            *(_constant(name, "float64") for name in ("workers", "per_worker", "harm", "yearly", "subsidy")),
            *(_constant(name, "float64") for name in ("national_subsidy", "health_weight", "least_health")),
            *(_constant(name, "float64") for name in ("health_scale", "least_economy", "economy_scale")),
            _constant("past_changes"),  # (82, states), of the days up to the first
        ),
    ),
)
