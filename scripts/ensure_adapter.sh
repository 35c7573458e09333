#!/bin/sh
# Installs Mesa's software Vulkan driver where no Vulkan adapter is found and apt can be used.
# usage: ensure_adapter.sh PYTHON
set -u
python=$1
packages="mesa-vulkan-drivers libvulkan1"

has_adapter() {
    "$python" -c 'import sys; from llmgpu.backend import list_adapters; sys.exit(not list_adapters())' \
        2>/dev/null
}

install_driver() {
    # shellcheck disable=SC2086  # several packages
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages
}

has_adapter && exit 0
if ! command -v apt-get >/dev/null; then
    why="there is no apt-get here"
elif [ "$(id -u)" != 0 ]; then
    why="only root may install packages"
else
    echo "no Vulkan adapter found: installing $packages"
    if output=$(install_driver 2>&1); then
        has_adapter && exit 0
        why="the driver is installed, but gives no adapter"
    else
        printf '%s\n' "$output" | tail -n 20 | sed 's/^/  apt-get: /' >&2
        why="apt-get failed"
    fi
fi
echo "no Vulkan adapter found, and $why." >&2
echo "NumPy is used until you install a driver (Debian: $packages)." >&2
