#!/usr/bin/env bash
# tests/container.sh [TARGET…]: build the targets of the Dockerfile from a clean clone of HEAD, run them as their user,
# and print what each weighs and how long it takes to start. Exits with 1 where anything fails. docs/container.md
#
# With docker or podman where one answers, else with buildah, which needs no daemon. Then the base is Debian's own
# Python, made by mmdebstrap, unless BASE names an image. What `pip config list` says here goes in as a secret; of the
# local folders in it docker sees none. A proxy is taken from the environment by all three.
#   BUILDER=buildah             choose one
#   BASE=IMAGE                  build on that
#   BUILD="--build-arg X=Y …"   say more to the builder
#   STORAGE=FOLDER              keep buildah's layers there, for the next time; STORAGE_DRIVER=vfs chooses how
#   PYTHON=python3              whose pip is asked
set -euo pipefail
cd "$(dirname "$0")/.."

targets=("$@")
[ $# -gt 0 ] || targets=(core train tank)
python=${PYTHON:-python3}
read -ra more <<< "${BUILD:-}"
scratch=$(mktemp -d)
storage=${STORAGE:-$scratch/storage}
source=$scratch/source
failed=0

say() { printf '%s\n' "$*" >&2; }

# Which builder. The client of docker may be there without the daemon.
find_builder() {
    for each in ${BUILDER:-docker podman buildah}; do
        case $each in
            docker | podman) ! "$each" info > /dev/null 2>&1 || { echo "$each"; return; } ;;
            *) ! command -v "$each" > /dev/null || { echo "$each"; return; } ;;
        esac
    done
    say "There is no docker or podman that answers, and no buildah; on Debian: apt-get install buildah mmdebstrap"
    exit 1
}

buildah() { command buildah --storage-driver "$driver" --root "$storage/root" --runroot "$scratch/run" "$@"; }

# Copies of whole layers (vfs) work everywhere; overlay is quicker and smaller, where kernel and disk allow it.
choose_driver() {
    for driver in ${STORAGE_DRIVER:-overlay vfs}; do
        if [ "$(cat "$storage/driver" 2> /dev/null || echo "$driver")" = "$driver" ] &&
            buildah info > /dev/null 2>&1 && container=$(buildah from scratch 2> /dev/null) &&
            buildah mount "$container" > /dev/null 2>&1; then
            buildah rm "$container" > /dev/null
            echo "$driver" > "$storage/driver"
            return
        fi
    done
    say "buildah can keep its layers in none of: ${STORAGE_DRIVER:-overlay vfs}"
    exit 1
}

clean() {
    if [ "$builder" = buildah ]; then
        buildah rm --all > /dev/null 2>&1 || true
        umount "$storage/root/overlay" 2> /dev/null || true  # which it has mounted on itself
    fi
    rm -rf --one-file-system "$scratch"
}

make_base() {
    buildah inspect --type image pufferlib-base > /dev/null 2>&1 && return
    say "Making a base image of Debian's Python …"
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$scratch/base.tar"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$scratch/base.tar" / > /dev/null
    buildah commit --quiet --rm --format docker "$container" pufferlib-base > /dev/null
    rm "$scratch/base.tar"
}

# pip.conf with what pip is told here, and the files and folders in it, which a builder without a daemon can show.
pip_settings() {
    "$python" -m pip config list | "$python" -c '
import ast, os, re, sys
lines = dict(line.strip().split("=", 1) for line in sys.stdin)
told = {name.rpartition(".")[2]: ast.literal_eval(text) for name, text in lines.items()}
with open(sys.argv[1], "w") as file:
    print("[global]", file=file)
    for name, text in told.items():
        print(name, "=", *text.split(), file=file)
for scheme, path in re.findall(r"(?:^|\s)(file://)?(/[^\s]+)", " ".join(told.values())):
    path = os.path.dirname(path) if scheme else path  # the files of an index lie beside it
    print(path if os.path.exists(path) else "")
' "$scratch/pip.conf"
}

build() {  # build TARGET
    say "Building $1 …"
    local command=(build)
    local options=(--target "$1" --tag "pufferlib:$1" --build-arg "VERSION=$version")
    options+=(--secret "id=pip,src=$scratch/pip.conf")
    [ -z "${BASE:-}" ] || options+=(--build-arg "BASE=$BASE")
    case $builder in
        docker)
            export DOCKER_BUILDKIT=1
            for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
                [ -z "${!name:-}" ] || options+=(--build-arg "$name")  # which it knows, and keeps in no image
            done
            ;;
        buildah) command=(bud --isolation chroot --layers) ;;&
        *)
            options+=(--format docker)  # the other format has no HEALTHCHECK
            while read -r path; do
                [ -z "$path" ] || options+=(--volume "$path:$path:ro")
            done <<< "$mounts"
            ;;
    esac
    "${tool[@]}" "${command[@]}" "${options[@]}" ${more[@]+"${more[@]}"} "$source" > "$scratch/$1.log" 2>&1 && return
    tail -n 40 "$scratch/$1.log" >&2
    say "FAILED: $1 could not be built"
    return 1
}

run() {  # run TARGET [--user USER] COMMAND…
    local target=$1 user=()
    shift
    [ "$1" != --user ] || { user=(--user "$2"); shift 2; }
    case $builder in
        buildah) buildah run --isolation chroot ${user[@]+"${user[@]}"} "${containers[$target]}" -- "$@" ;;
        *) "$builder" run --rm --init ${user[@]+"${user[@]}"} "pufferlib:$target" "$@" ;;
    esac
}

facts() {  # facts TARGET: the version of its label, and under it the words of its HEALTHCHECK
    case $builder in
        buildah) buildah inspect --type image "pufferlib:$1" ;;
        *) "$builder" image inspect "pufferlib:$1" ;;
    esac | "$python" -c '
import json, sys
told = json.load(sys.stdin)
config = told["Docker"]["config"] if "Docker" in told else told[0]["Config"]
health = (config.get("Healthcheck") or told[0]["Healthcheck"])["Test"]  # podman has it one level up
print(config["Labels"]["org.opencontainers.image.version"], *health[1:], sep="\n")
'
}

megabytes() {  # megabytes TARGET: of all its files, not compressed
    case $builder in
        buildah) du --summarize --block-size=1000000 "$(buildah mount "${containers[$1]}")" | cut -f1 ;;
        *) echo $(($("$builder" image inspect --format '{{.Size}}' "pufferlib:$1") / 1000000)) ;;
    esac
}

check() {  # check WHAT TARGET COMMAND…: run it, show what it says, and note whether it failed
    local what=$1
    shift
    say "$1: $what"
    run "$@" >&2 && return
    say "FAILED: $1: $what"
    failed=1
}

seconds() {  # seconds TARGET COMMAND…: the median of five runs
    for _ in 1 2 3 4 5; do
        local start=$EPOCHREALTIME
        run "$@" > /dev/null
        "$python" -c "print(f'{$EPOCHREALTIME - $start:.2f}')"
    done | sort -n | sed -n 3p
}

# One environment of each family in `tank`, and a game of OpenSpiel's.
PLAY='
import sys, warnings
import pufferlib, pyspiel
warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    with pufferlib.make(name, backend="multiprocessing", num_envs=2, num_workers=2, seed=1) as vec:
        vec.reset()
        for _ in range(20):
            vec.step(vec.action_space.sample())
        print(f"{name}: {vec.agents_per_batch} rows of {vec.single_observation_space}"[:100])
print(pyspiel.load_game("kuhn_poker"))
'
PLAYED="CartPole-v1 Blackjack-v1 CarRacing-v3 ALE/Pong-v5 MiniGrid-Empty-8x8-v0 BabyAI-GoToLocalS5N2-v0
    mpe/simple_spread_v3 butterfly/knights_archers_zombies_v11 magent/battle_v4 Foraging-8x8-3p-3f-v3 rware-tiny-2ag-v2
    sisl/pursuit_v5 pettingzoo-classic/connect_four_v3 open_spiel/kuhn_poker HalfCheetah-v5 crafter/reward
    VizdoomBasic-v1 MinAtar/Breakout-v1 popgym-RepeatPreviousEasy-v0"

builder=$(find_builder)
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -p "$storage"
tool=("$builder")
[ "$builder" != buildah ] || { tool=(buildah); choose_driver; }

for hadolint in .venv/bin/hadolint hadolint; do command -v "$hadolint" > /dev/null && break; done
"$hadolint" Dockerfile || failed=1

git clone --quiet . "$source"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$source/pufferlib/version.py")
mounts=$(pip_settings)
if [ "$builder" = buildah ] && [ -z "${BASE:-}" ]; then
    make_base
    BASE=localhost/pufferlib-base
fi

declare -A containers
table="| target | MB | empty process | first steps in a worker | puffer doctor |
| --- | --- | --- | --- | --- |"
for target in "${targets[@]}"; do
    build "$target" || { failed=1; continue; }
    [ "$builder" != buildah ] || containers[$target]=$(buildah from --pull-never "pufferlib:$target")
    mapfile -t told < <(facts "$target")
    health=("${told[@]:1}")
    [ "${told[0]}" = "$version" ] || { say "FAILED: $target is labelled ${told[0]}, not $version"; failed=1; }
    check "its user is not root, and may write" "$target" sh -euc '
        id; test "$(id -u)" != 0; touch "$HOME/x" x; rm "$HOME/x" x'
    check "nothing of pip's settings is left" "$target" sh -c '! test -s /etc/pip.conf && ! env | grep -i "^pip_"'
    check "HEALTHCHECK" "$target" "${health[@]}"
    check "puffer doctor" "$target" puffer doctor
    check "any other user" "$target" --user 4321:4321 puffer doctor
    case $target in
        train) check "puffer ocean" train puffer ocean ;;
        tank)
            check "puffer envs" tank puffer envs
            check "families" tank python -c "$PLAY" $PLAYED
            ;;
    esac
    table+="
| \`$target\` | $(megabytes "$target") | $(seconds "$target" true) s | $(seconds "$target" "${health[@]}") s \
| $(seconds "$target" puffer doctor) s |"
done

echo "$table"
echo "$("${tool[@]}" --version), $(nproc) cores, $(date +%F)"
[ $failed -eq 0 ] || { say "FAILED: see above for what"; exit 1; }
