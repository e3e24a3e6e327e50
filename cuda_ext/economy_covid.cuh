// economy/covid: governors and a planner in a pandemic. references/economy_model.py has the equations, in NumPy, and
// references/economy_covid.py the observations.
#include "exponentials.cuh"

enum { LAG = 29, MAX_DAYS = 600, FIRST_DAY = 81, NUM_FILTERS = 5, NUM_LEVELS = 10, NUM_CHOICES = 21 };
enum { GOVERNOR_MASK = NUM_LEVELS + 1, NUM_SHARES = 6 };

__device__ __forceinline__ double not_negative(double value) { return value > 0.0 ? value : 0.0; }

__device__ void start(const Env& env, int e, const Group& group) {
    const int n = env.num_states, first = e * n;
    for (int i = group.rank; i < n; i += group.size) {
        env.susceptible[first + i] = env.start_susceptible[i];
        env.infected[first + i] = env.start_infected[i];
        env.recovered[first + i] = env.start_recovered[i];
        env.unemployed[first + i] = env.start_unemployed[i];
        env.vaccinated[first + i] = env.product[first + i] = 0.0f;
        env.bound_until[first + i] = 0;
    }
    for (int k = group.rank; k < env.num_sums; k += group.size) env.memory[e * env.num_sums + k] = env.start_memory[k];
    for (int k = group.rank; k < env.num_past_levels; k += group.size) {
        env.levels[e * env.num_past_levels + k] = env.start_levels[k];
    }
    if (group.rank == 0) env.subsidy_level[e] = 0;
}

__device__ __forceinline__ float deaths(float recovered, float vaccinated) {
    return (float)(0.02 * ((double)recovered - (double)vaccinated));
}

// Takes the governors' actions: sets today's levels, and writes the level that determines the transmission.
__device__ __forceinline__ void decide(const Env& env, int e, int row, int t, const Group& group) {
    const int n = env.num_states;
    unsigned char* const levels = env.levels + (size_t)e * env.num_past_levels;
    for (int i = group.rank; i < n; i += group.size) {
        const int chosen = action(env, e, i, row, NUM_CHOICES), choice = chosen < NUM_LEVELS ? chosen : NUM_LEVELS;
        int* const bound_until = env.bound_until + (size_t)e * n + i;
        const bool due = t > *bound_until;
        if (due) *bound_until += choice != 0 ? env.action_cooldown : 1;
        const int before = levels[(t - 1) % LAG * n + i];
        const int level = (due || !env.enforce_masks) && choice != 0 ? choice : before;
        env.lagged[e * n + i] = levels[t % LAG * n + i];
        env.change[e * n + i] = (float)(level - before);
        levels[t % LAG * n + i] = (unsigned char)level;
    }
}

// Plays a day of infections and vaccinations, after `decide`.
__device__ __forceinline__ void infect(const Env& env, int e, int t, const Group& group) {
    const int first = e * env.num_states;
    const double gamma = (double)(float)(1.0 / 14.0);
    const bool vaccinates = t >= env.first_vaccines, clips = env.clip_transmission != 0;
    SIDE_BY_SIDE
    for (int i = group.rank; i < env.num_states; i += group.size) {
        const float linear = env.transmission_intercept[i] + env.transmission_slope[i] * env.lagged[first + i];
        const double beta = clips && !(linear > 0.0f) ? 0.0 : (double)linear;
        const double s = env.susceptible[first + i], infected = env.infected[first + i];
        const double available = vaccinates ? (double)env.doses[i] : 0.0;
        const double vaccinations = available < s ? available : s;
        const double share = available / (s + 1e-10), missed = 1.0 - (share < 1.0 ? share : 1.0);
        const double infections = beta * (s * env.per_person[i] * infected) * missed;
        const double gone = gamma * infected + vaccinations, fewer = -infections - vaccinations;
        const float recovered = env.recovered[first + i], vaccinated = env.vaccinated[first + i];
        const float recovered_after = (float)not_negative((double)recovered + gone);
        const float vaccinated_after = (float)not_negative((double)vaccinated + vaccinations);
        env.susceptible[first + i] = (float)not_negative(s + fewer);
        env.infected[first + i] = (float)not_negative(infected + (-fewer - gone));
        env.recovered[first + i] = recovered_after;
        env.vaccinated[first + i] = vaccinated_after;
        env.new_deaths[first + i] =
            (double)deaths(recovered_after, vaccinated_after) - (double)deaths(recovered, vaccinated);
    }
}

// Sums up the changes of level of the last 600 days, and sets the unemployed persons.
__device__ __forceinline__ void remember(const Env& env, int e, int t, const Group& group) {
    const int n = env.num_states, first = e * n, day = t - (MAX_DAYS - FIRST_DAY);
    float* const memory = env.memory + (size_t)e * env.num_sums;
    const bool forgets = day >= 0 && day <= FIRST_DAY;
    SIDE_BY_SIDE
    for (int i = group.rank; i < n; i += group.size) {
        const double change = env.change[first + i];
        const double old = forgets ? (double)env.past_changes[day * n + i] : 0.0;
        double signal = 0.0;
        for (int k = 0; k < NUM_FILTERS; ++k) {
            const float sum = (float)(env.decay[k] * (double)memory[k * n + i] + change - env.cut[k] * old);
            memory[k * n + i] = sum;
            const double part = env.filter_weights[k * n + i] * (double)sum;
            signal = k == 0 ? part : signal + part;
        }
        const float x = (float)signal;
        const float softplus = x > 20.0f ? x : logarithm(1.0f + exponential(x < 20.0f ? x : 20.0f));
        const double rate = (double)softplus + (double)env.unemployment_bias[i];
        env.unemployed[first + i] = (float)(rate * env.percent[i]);
    }
}

__device__ __forceinline__ float reward(const Env& env, int agent, double new_deaths, double dollars) {
    const double of_year = dollars * env.yearly[agent];
    const double most = of_year > 0.1 ? of_year : 0.1, clipped = most < 3.0 ? most : 3.0;
    const double economy = (2.0 - 1.0 / clipped) * (1.0 / 365.0), weight = env.health_weight[agent];
    const double good = (new_deaths * env.harm[agent] - env.least_health[agent]) * env.health_scale[agent];
    const double rich = (economy - env.least_economy[agent]) * env.economy_scale[agent];
    return (float)(weight * good + (1.0 - weight) * rich);
}

// Sets the states' products of the day, with subsidies, and the governors' rewards.
__device__ __forceinline__ void produce(const Env& env, int e, int row, int subsidy_level, const Group& group) {
    const int first = e * env.num_states;
    const double per_worker = env.per_worker[0];
    SIDE_BY_SIDE
    for (int i = group.rank; i < env.num_states; i += group.size) {
        const float dead = deaths(env.recovered[first + i], env.vaccinated[first + i]);
        const double unable = 0.1 * (double)env.infected[first + i] + (double)dead;
        const double working = not_negative(env.workers[i] - 0.6 * unable - (double)env.unemployed[first + i]);
        const float product = (float)(working * per_worker + subsidy_level * env.subsidy[i]);
        env.product[first + i] = product;
        env.rewards[row + i] = reward(env, i, env.new_deaths[first + i], (double)product);
    }
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int n = env.num_states, planner = n, t = env.t[e];
    int subsidy_level = env.subsidy_level[e];
    if (!env.enforce_masks || (t - 1) % env.subsidy_interval == 0) {
        subsidy_level = action(env, e, planner, row, NUM_CHOICES);
    }
    decide(env, e, row, t, group);
    infect(env, e, t, group);
    remember(env, e, t, group);
    produce(env, e, row, subsidy_level, group);
    group.sync();  // all have read the level of subsidies, and written their states

    if (planner % group.size == group.rank) {
        env.subsidy_level[e] = subsidy_level;
        double new_deaths = 0.0, dollars = 0.0;
#pragma unroll 1  // unrolled, the loop takes twice as many registers
        for (int i = 0; i < n; ++i) {
            new_deaths += env.new_deaths[e * n + i];
            dollars += (double)env.product[e * n + i];
        }
        dollars -= 1.03 * (subsidy_level * env.national_subsidy[0]);
        env.rewards[row + planner] = reward(env, planner, new_deaths, dollars);
    }
    const bool late = t >= env.episode_length;
    for (int a = group.rank; a < env.num_agents; a += group.size) env.truncations[row + a] = late && env.masks[row + a];
}

// A row is an action mask and an observation, and zeros up to the planner's size.
__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    const int n = env.num_states, first = e * n, size = env.observation_size, t = env.t[e];
    for (int k = group.rank; k < env.num_agents * size; k += group.size) observations[k] = 0.0f;
    group.sync();

    const unsigned char* const levels = env.levels + (size_t)e * env.num_past_levels;
    const unsigned char* const lagged = levels + (t + 1) % LAG * n;
    const unsigned char* const today = levels + t % LAG * n;
    const int days = t % env.subsidy_interval;
    const float shared[3] = {
        1.0f - (float)days / (float)env.subsidy_interval,
        (float)env.subsidy_level[e] / 20.0f,
        t != env.first_vaccines - 1 ? 1.0f : 0.0f,
    };
    const float time = (float)t / (float)env.episode_length;
    float* const mask = observations + (size_t)n * size;  // the planner's row
    float* const shares = mask + NUM_CHOICES;
    float* const products = shares + NUM_SHARES * n;
    float* const lags = products + n;
    float* const now = lags + n + 1;
    for (int i = group.rank; i < n; i += group.size) {
        float* const row = observations + (size_t)i * size;
        const bool free = !env.enforce_masks || t >= env.bound_until[first + i];
        for (int k = 0; k < GOVERNOR_MASK; ++k) row[k] = k == 0 || free ? 1.0f : 0.0f;
        float* const values = row + GOVERNOR_MASK + n;  // after the one-hot vector
        row[GOVERNOR_MASK + i] = 1.0f;
        const float population = env.population[i];
        const float dead = deaths(env.recovered[first + i], env.vaccinated[first + i]);
        shares[i] = values[0] = env.susceptible[first + i] / population;
        shares[n + i] = values[1] = env.infected[first + i] / population;
        shares[2 * n + i] = values[2] = env.recovered[first + i] / population;
        shares[3 * n + i] = values[3] = dead / population;
        shares[4 * n + i] = values[4] = env.vaccinated[first + i] / population;
        shares[5 * n + i] = values[5] = env.unemployed[first + i] / population;
        products[i] = values[6] = env.product[first + i] / env.most_product[i];
        lags[i] = values[7] = (float)lagged[i] / 10.0f;
        values[8] = time;
        now[i] = values[9] = (float)today[i] / 10.0f;
        for (int k = 0; k < 3; ++k) values[10 + k] = shared[k];
    }
    if (n % group.size == group.rank) {
        for (int k = 0; k < NUM_CHOICES; ++k) mask[k] = k == 0 || !env.enforce_masks || days == 0 ? 1.0f : 0.0f;
        lags[n] = time;
        for (int k = 0; k < 3; ++k) now[n + k] = shared[k];
    }
}
