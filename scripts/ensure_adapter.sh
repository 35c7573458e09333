#!/bin/sh
# Installs Mesa's software Vulkan driver where no Vulkan adapter is found and apt can be used.
# usage: ensure_adapter.sh PYTHON
set -u
python=$1

has_adapter() {
    "$python" -c 'import sys; from llmgpu.backend import list_adapters; sys.exit(not list_adapters())' \
        2>/dev/null
}

has_adapter && exit 0
packages="mesa-vulkan-drivers libvulkan1"
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "no Vulkan adapter found: installing $packages"
    if apt-get update -qq >/dev/null 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null 2>&1 &&
        has_adapter; then
        exit 0
    fi
fi
echo "no Vulkan adapter found: install a driver (Debian: $packages); NumPy is used until then"
